# status: failed
# error: subprocess|OSError|Function not implemented
def main(args):
    import subprocess
    subprocess.run(["ls"])
