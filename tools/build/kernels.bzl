"""kernel_family: the targets of a folder in core/kernels, told apart by the names of its files.

    kernel_family(name = "norm", families = ["reduction"])

    //core/kernels/norm                  args.h, contract.cc and other device-free files
    //core/kernels/norm:norm_cpu         *_cpu.cc, *_cpu.h, *-inl.h
    //core/kernels/norm:norm_cuda        *.cu.cc, *_cuda.cc, *_cuda.h, by nvcc; only where there is a CUDA toolkit
    //core/kernels/norm:norm_cuda_emulated    the same sources on the emulated GPU

`families` are other families whose files this one includes, on any device. `deps`, `cpu_deps` and `cuda_host_deps` are further
dependencies of one of the three. What else is given goes to mantissa_cuda_library.
"""

load("//tools/build:cuda.bzl", "mantissa_cuda_library")
load("//tools/build:defs.bzl", "mantissa_cc_library")

def kernel_family(
        name,
        families = [],
        deps = [],
        cpu_deps = [],
        cuda_host_deps = [],
        emulated_srcs = [],
        emulated_hdrs = [],
        **kwargs):
    cpu = ["*_cpu.cc", "*_cpu.h", "*-inl.h"]
    cuda = ["*.cu.cc", "*_cuda.cc", "*_cuda.h"] + emulated_srcs + emulated_hdrs
    shared = [
        "//core/base",
        "//core/kernels",
        "//core/quant",
        "//core/tensor",
        "@fmt",
    ]
    family = "//core/kernels/{0}:{0}{1}"
    mantissa_cc_library(
        name = name,
        srcs = native.glob(["*.cc"], exclude = cpu + cuda),
        hdrs = native.glob(["*.h"], exclude = cpu + cuda),
        deps = shared + deps + [family.format(other, "") for other in families],
    )
    mantissa_cc_library(
        name = name + "_cpu",
        srcs = native.glob(["*_cpu.cc"]),
        hdrs = native.glob(["*_cpu.h", "*-inl.h"]),
        # Highway's foreach_target includes the source once for each instruction set.
        textual_hdrs = native.glob(["*_cpu.cc"]),
        deps = shared + cpu_deps + [":" + name, "//core/cpu"] + [family.format(other, "_cpu") for other in families],
    )
    mantissa_cuda_library(
        name = name + "_cuda",
        srcs = native.glob(["*.cu.cc", "*_cuda.cc"], exclude = emulated_srcs),
        hdrs = native.glob(["*_cuda.h"]),
        cuda_deps = ["//core/cuda/device"] + [family.format(other, "_cuda") for other in families],
        deps = shared + cuda_host_deps + [":" + name],
        emulated_srcs = emulated_srcs,
        emulated_hdrs = emulated_hdrs,
        **kwargs
    )
