"""The OpenAPI document: schemas and examples of what parsers outside FastAPI read."""
