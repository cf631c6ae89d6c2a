"""Where states of texts are kept, at models that have some beside keys and values (`traits.keep_state`)."""
