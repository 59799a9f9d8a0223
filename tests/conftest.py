import subprocess, pytest
@pytest.fixture
def example():
    def run(name, *args):
        p = subprocess.run([f"/work/main/target/release/examples/{name}", *map(str, args)], capture_output=True, text=True)
        assert p.returncode == 0, p.stderr
        return p.stdout
    return run
