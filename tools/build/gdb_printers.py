"""Printers of gdb for Tensor, Shape and DType: (gdb) source tools/build/gdb_printers.py"""
import gdb

NAMES = {"kF32": "fp32", "kBF16": "bf16", "kF16": "fp16", "kI32": "i32", "kU8": "u8", "kF64": "fp64",
         "kE4M3": "e4m3", "kE5M2": "e5m2"}


def dtype(value):
    text = str(value.format_string(raw=True)).rpartition("::")[2]
    return NAMES.get(text, text)


def shape(value):
    extents = value["extents_"]["_M_elems"]
    return "(" + ", ".join(str(int(extents[i])) for i in range(int(value["rank_"]))) + ")"


def tensor(value):
    storage = value["storage_"]["_M_ptr"]
    if not int(storage):
        return "undefined tensor"
    storage = storage.dereference()
    kind, address = dtype(value["dtype_"]), int(storage["data_"]) + int(value["offset_bytes_"])
    text = f"{kind} {shape(value['shape_'])} at {address:#x} on {storage['device_']['kind']}"
    if kind != "fp32" or "kCpu" not in text:
        return text
    count = 1
    for extent in shape(value["shape_"]).strip("()").split(", "):
        count *= int(extent or 1)
    elements = gdb.Value(address).cast(gdb.lookup_type("float").pointer())
    return text + ": " + ", ".join(f"{float(elements[i]):g}" for i in range(min(count, 8))) + (", ..." if count > 8 else "")


class Printer:
    def __init__(self, show, value):
        self.show, self.value = show, value

    def to_string(self):
        return self.show(self.value)


SHOWN = {"mantissa::Tensor": tensor, "mantissa::Shape": shape, "mantissa::DType": dtype}
gdb.pretty_printers.append(
    lambda value: (lambda show: Printer(show, value) if show else None)(SHOWN.get(str(value.type.unqualified().strip_typedefs())))
)
