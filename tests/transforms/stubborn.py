"""A stand-in for a remote store, backed by a folder of the test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apache_beam.io.localfilesystem import LocalFileSystem


class StubbornFileSystem(LocalFileSystem):
    """Paths have a scheme, and a rename does not replace a file."""

    root = ""

    @classmethod
    def scheme(cls) -> Any:
        return "stubborn"

    def _local(self, path: str) -> str:
        return path.replace("stubborn://", self.root + "/")

    def join(self, basepath, *paths):
        return "/".join([basepath.rstrip("/"), *paths])

    def split(self, path):
        return tuple(path.rsplit("/", 1))

    def mkdirs(self, path):
        super().mkdirs(self._local(path))

    def create(self, path, *args, **kwargs):
        return super().create(self._local(path), *args, **kwargs)

    def open(self, path, *args, **kwargs):
        return super().open(self._local(path), *args, **kwargs)

    def exists(self, path):
        return super().exists(self._local(path))

    def delete(self, paths):
        for path in paths:
            Path(self._local(path)).unlink()

    def match(self, patterns, limits=None):
        found = super().match([self._local(pattern) for pattern in patterns], limits)
        for result in found:
            for one in result.metadata_list:
                one.path = one.path.replace(self.root + "/", "stubborn://")
        return found

    def rename(self, source_file_names, destination_file_names):
        if self.exists(destination_file_names[0]):
            raise OSError("there is a file already")
        super().rename(
            [self._local(one) for one in source_file_names], [self._local(one) for one in destination_file_names]
        )
