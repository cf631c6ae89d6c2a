"""Grammars: which tokens may come next. Application hosts and workers both have them: a host compiles what a program
gives and answers its questions, a worker follows decode runs, so that no mask has to travel."""
