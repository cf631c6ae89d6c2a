"""Grammar: which tokens may come next. `Context.generate` takes a schema, a regular expression or a grammar itself."""

from inferlet_sdk.traits.grammar.matchers import *
