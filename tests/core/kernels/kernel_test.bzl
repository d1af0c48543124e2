"""device_test (tests/testing) for kernels: kernel_test(name = "add", deps = [...]) has its cases in add_test.cc."""

load("//tests/testing:device_test.bzl", "device_test")

def kernel_test(name, srcs = [], deps = [], size = "small", emulated_size = "medium"):
    device_test(
        name = name,
        srcs = [name + "_test.cc"] + srcs,
        size = size,
        cpu = [":device_cpu"],
        emulated = [":device_cuda_emulated"],
        emulated_size = emulated_size,
        deps = [
            ":kernel_check",
            "//tests/reference:random_values",
        ] + deps,
    )
