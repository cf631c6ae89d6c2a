# status: failed
# error: main
x = 1
