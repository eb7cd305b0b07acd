"""Documents in and out: requests, answers, problems, and the text and numbers in them."""
