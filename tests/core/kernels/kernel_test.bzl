"""kernel_tests: the tests of a family of kernels, in a folder of its own.

    kernel_tests(name = "norm", deps = [...])

makes, of all *_test.cc of the folder,
    norm_cases           the cases as a library, for tests/gpu
    norm_cpu_test        on the CPU
    norm_emulated_test   on the emulated GPU: the CUDA kernels on the host
    norm_faults_test     whether these notice faults of the kernels: for changes of a kernel or its test; slow
and, of what else is there, the library norm, for tests of other folders.
"""

load("//tests/testing:device_test.bzl", "device_test")
load("//tools/build:defs.bzl", "mantissa_cc_library", "mantissa_cc_test")

def kernel_tests(name, exclude = [], deps = [], shards = 1, faults_size = "medium", faults = True):
    helpers = native.glob(["*.h", "*.cc"], exclude = ["*_test.cc"] + exclude)
    shared = deps + [
        "//tests/core/kernels",
        "//tests/reference",
        "//tests/testing",
    ]
    if helpers:
        mantissa_cc_library(
            name = name,
            srcs = [helper for helper in helpers if helper.endswith(".cc")],
            hdrs = [helper for helper in helpers if helper.endswith(".h")],
            deps = shared + ["@fmt", "@gtest"],
        )
    device_test(
        name = name,
        srcs = native.glob(["*_test.cc"], exclude = exclude),
        cpu = ["//tests/core/kernels:device_cpu"],
        emulated = ["//tests/core/kernels:device_cuda_emulated"],
        size = "medium",
        emulated_size = "large",
        shards = shards,
        deps = shared + ([":" + name] if helpers else []),
    )
    if not faults:
        return
    program = ":" + name + "_emulated_test"
    mantissa_cc_test(
        name = name + "_faults_test",
        size = faults_size,
        srcs = [],
        data = [program],
        env = {"MANTISSA_FAULTY_PROGRAM": "$(rootpath %s)" % program},
        tags = [
            "no-sanitize",
            "slow",
        ],
        deps = ["//tests/core/kernels:seeded_faults"],
    )
