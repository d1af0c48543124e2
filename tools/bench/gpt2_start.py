"""The file of `step --export`: the state from which another program trains the same model in the same way."""

import json
import struct

import torch

DTYPES = {"F32": torch.float32, "I32": torch.int32}


class Start:
    """metadata: strings by configuration key; read(name): a tensor; names: all of them."""

    def __init__(self, path):
        """A safetensors file: u64le N, N bytes of JSON, data."""
        self.path = path
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            self.header = json.loads(file.read(length))
        self.begin = 8 + length
        self.metadata = self.header.pop("__metadata__")
        self.names = list(self.header)

    def read(self, name):
        """Reads instead of mapping: mapped pages would count as memory of this process."""
        entry = self.header[name]
        first, last = entry["data_offsets"]
        data = bytearray(last - first)
        with open(self.path, "rb") as file:
            file.seek(self.begin + first)
            if file.readinto(data) != len(data):
                raise OSError(f"{self.path}: ends within {name}")
        return torch.frombuffer(data, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])

    def load_into(self, model):
        """Copies all weights into the model. ValueError for another name or shape."""
        parameters = dict(model.named_parameters())
        weights = [name for name in self.names if name not in ("tokens", "targets")]
        if sorted(weights) != sorted(parameters):
            raise ValueError(f"{self.path}: holds other weights than the model has: {set(weights) ^ set(parameters)}")
        with torch.no_grad():
            for name in weights:
                values = self.read(name)
                if values.shape != parameters[name].shape:
                    raise ValueError(f"{self.path}: {name} has {values.shape}, the model {parameters[name].shape}")
                parameters[name].copy_(values)
