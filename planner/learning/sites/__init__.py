"""Sites: machines whose measured runs correct what is answered about them."""
