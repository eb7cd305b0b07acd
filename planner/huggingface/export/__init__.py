"""Models written as config.json files of the families of transformers that build them."""
