"""Programs outside of the sandbox, in this interpreter, under a debugger: for trusted code only.

A program runs on the thread that calls `NativeServer.run`; a server without a network runs on a thread of its own. The
program's SDK calls the same host functions as one in the sandbox (`pie_control.host_api`), and so gets the same tokens.
"""
