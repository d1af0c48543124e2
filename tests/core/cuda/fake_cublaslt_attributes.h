// What the stand-in for cuBLASLt reads of the descriptors that it is given, which are the real library's.
#pragma once

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/core.h>

#include <stdexcept>

namespace mantissa::cuda::fake_cublaslt {

template <typename Function>
Function real(const char* name) {
  static void* const library = dlopen(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR).c_str(), RTLD_NOW);
  if (library == nullptr || dlsym(library, name) == nullptr) throw std::runtime_error(name);
  return reinterpret_cast<Function>(dlsym(library, name));
}

inline void expect(bool condition, const char* what) {
  if (!condition) throw std::runtime_error(what);
}

template <typename Value>
Value get(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute) {
  static const auto function = real<decltype(&cublasLtMatrixLayoutGetAttribute)>("cublasLtMatrixLayoutGetAttribute");
  Value value{};
  size_t written = 0;
  expect(function(layout, attribute, &value, sizeof(value), &written) == CUBLAS_STATUS_SUCCESS, "layout attribute");
  return value;
}

template <typename Value>
Value get(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute) {
  static const auto function = real<decltype(&cublasLtMatmulDescGetAttribute)>("cublasLtMatmulDescGetAttribute");
  Value value{};
  size_t written = 0;
  expect(function(operation, attribute, &value, sizeof(value), &written) == CUBLAS_STATUS_SUCCESS,
         "operation attribute");
  return value;
}

template <typename Value>
Value get(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute) {
  static const auto function =
      real<decltype(&cublasLtMatmulPreferenceGetAttribute)>("cublasLtMatmulPreferenceGetAttribute");
  Value value{};
  size_t written = 0;
  expect(function(preference, attribute, &value, sizeof(value), &written) == CUBLAS_STATUS_SUCCESS, "preference");
  return value;
}

}  // namespace mantissa::cuda::fake_cublaslt
