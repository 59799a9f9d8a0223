"""`nestor doctor` on a good installation and on broken ones."""
import json
import os
import shutil
import subprocess


def checks(program, code, env=None, cwd=None):
    done = subprocess.run([program, "doctor", "--json"], capture_output=True, text=True, timeout=900, env=env, cwd=cwd)
    assert done.returncode == code and not done.stderr, done
    report = json.loads(done.stdout)
    assert report["passed"] == (code == 0) and all(("remedy" in check) == (check["verdict"] != "ok") for check in report["checks"])
    return {check["name"]: check for check in report["checks"]}


def test_this_installation_is_good(nestor):
    found = checks(nestor, 0)
    assert found["libtorch"]["verdict"] == "ok" and "2.11.0" in found["libtorch"]["found"]
    half = "loaded" if any(os.path.exists(f"/dev/{name}") for name in ("nvidiactl", "nvidia0", "dxg")) else "not loaded"
    assert f"CUDA half {half}" in found["libtorch"]["found"]
    assert "numberline" in found["environments"]["found"] and "gigpo" in found["estimators"]["found"]
    assert {"GPU", "disk", "/dev/shm", "open files", "processes", "locked", "cores", "memory", "Hugging Face", "W&B"} <= set(found)


def test_a_broken_plugin_is_named(nestor, tmp_path):
    (tmp_path / "libnestor_broken.so").write_text("no library")
    found = checks(nestor, 1, env=os.environ | {"NESTOR_PLUGIN_PATH": str(tmp_path)})
    assert found["plugin"]["verdict"] == "fail" and "libnestor_broken.so" in found["plugin"]["found"]


def test_a_program_alone_has_no_libtorch(nestor, tmp_path):
    shutil.copy(nestor, tmp_path / "nestor")
    found = checks(tmp_path / "nestor", 1)
    assert found["libtorch"]["verdict"] == "fail" and "nestor-torch" in found["libtorch"]["found"]


def test_a_missing_libtorch_is_one_message(nestor, tmp_path):
    # nestor-torch without the path of its libraries: the loader finds none of libtorch's.
    shutil.copy(nestor, tmp_path / "nestor")
    moved = nestor.with_name("nestor-torch").read_bytes()
    folder = str(tmp_path / "gone").encode()
    for path in run_paths(nestor.with_name("nestor-torch")):
        moved = moved.replace(path, folder[:len(path)].ljust(len(path), b"_"))
    (tmp_path / "nestor-torch").write_bytes(moved)
    (tmp_path / "nestor-torch").chmod(0o755)
    found = checks(tmp_path / "nestor", 1)
    assert "libtorch_cpu.so" in found["libtorch"]["found"] and "pip install torch==2.11.0" in found["libtorch"]["remedy"]
    done = subprocess.run([tmp_path / "nestor", "generate", "m", "--chat", "Hello"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1 and "lacks libc10.so" in done.stderr, done


def run_paths(program):
    """The folders of libraries that a program names (RUNPATH)."""
    listed = subprocess.run(["readelf", "-d", program], capture_output=True, text=True, check=True).stdout
    return [line.split("[")[1].rstrip("]").encode() for line in listed.splitlines() if "RUNPATH" in line]
