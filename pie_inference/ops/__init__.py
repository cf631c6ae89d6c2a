"""Operations of Transformer layers, one module per implementation."""
