# status: failed
# error: ValueError: at import
raise ValueError("at import")
