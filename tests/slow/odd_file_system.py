"""A file system of FUSE that passes everything to a folder but lacks what `--without` names, as NFS mounts without locks, object stores
mounted as folders, and shares of other systems do. Runs in the environment of file_systems.py.

    odd_file_system.py FOLDER MOUNT [--without flock|symlink|rename|rename-dir|append|fsync-dir]... [--delay SECONDS]
"""
import argparse
import errno
import os
import time

import mfusepy

ERRORS = {"flock": errno.ENOLCK, "symlink": errno.EPERM, "rename": errno.ENOSYS, "rename-dir": errno.EPERM, "append": errno.EPERM,
          "fsync-dir": errno.EINVAL}


class Odd(mfusepy.Operations):
    use_ns = True

    def __init__(self, folder, without, delay):
        self.folder, self.without, self.delay = folder, without, delay

    def real(self, path):
        time.sleep(self.delay)
        return self.folder + path

    def need(self, ability):
        if ability in self.without:
            raise mfusepy.FuseOSError(ERRORS[ability])

    def getattr(self, path, fh=None):
        found = os.fstat(fh) if fh else os.lstat(self.real(path))
        return {key: getattr(found, key) for key in ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")} | {
            "st_atime": found.st_atime_ns, "st_mtime": found.st_mtime_ns, "st_ctime": found.st_ctime_ns}

    def statfs(self, path):
        found = os.statvfs(self.folder)
        return {key: getattr(found, key) for key in ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_files", "f_ffree", "f_frsize", "f_namemax")}

    def readdir(self, path, fh):
        return [".", "..", *os.listdir(self.real(path))]

    def mkdir(self, path, mode):
        return os.mkdir(self.real(path), mode)

    def rmdir(self, path):
        return os.rmdir(self.real(path))

    def unlink(self, path):
        return os.unlink(self.real(path))

    def rename(self, old, new):
        self.need("rename")
        if os.path.isdir(self.folder + old):
            self.need("rename-dir")
        return os.rename(self.real(old), self.folder + new)

    def symlink(self, target, source):
        self.need("symlink")
        return os.symlink(source, self.real(target))

    def readlink(self, path):
        return os.readlink(self.real(path))

    def link(self, target, source):
        raise mfusepy.FuseOSError(errno.EPERM)

    def chmod(self, path, mode):
        return os.chmod(self.real(path), mode)

    def chown(self, path, uid, gid):
        return os.chown(self.real(path), uid, gid, follow_symlinks=False)

    def utimens(self, path, times=None):
        return os.utime(self.real(path), ns=times, follow_symlinks=False)

    def create(self, path, mode, fi=None):
        return os.open(self.real(path), os.O_RDWR | os.O_CREAT | os.O_TRUNC, mode)

    def open(self, path, flags):
        if flags & os.O_APPEND:
            self.need("append")
        return os.open(self.real(path), flags & ~os.O_APPEND)

    def read(self, path, size, offset, fh):
        return os.pread(fh, size, offset)

    def write(self, path, data, offset, fh):
        return os.pwrite(fh, data, offset)

    def truncate(self, path, length, fh=None):
        return os.ftruncate(fh, length) if fh else os.truncate(self.real(path), length)

    def release(self, path, fh):
        return os.close(fh)

    def fsync(self, path, datasync, fh):
        time.sleep(self.delay)
        return os.fsync(fh)

    def fsyncdir(self, path, datasync, fh):
        self.need("fsync-dir")
        return 0


class Locking(Odd):
    """Without it the kernel keeps the locks."""

    def flock(self, path, fh, op):
        raise mfusepy.FuseOSError(errno.ENOLCK)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("mount")
    parser.add_argument("--without", action="append", default=[], choices=list(ERRORS))
    parser.add_argument("--delay", type=float, default=0.0)
    args = parser.parse_args()
    kind = Locking if "flock" in args.without else Odd
    mfusepy.FUSE(kind(os.path.abspath(args.folder), args.without, args.delay), args.mount, foreground=True, nothreads=args.delay == 0, fsname="odd")


if __name__ == "__main__":
    main()
