"""Everything that makes the demo model: data generators, tokenizer, training, evaluation. See README.md."""
