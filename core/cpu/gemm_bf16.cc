#include "core/cpu/gemm_bf16.h"

#include <dnnl.hpp>

namespace mantissa::cpu {

Bf16Gemm preferred_bf16_gemm() {
  static const Bf16Gemm preferred = [] {
    const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
    if (isa == dnnl::cpu_isa::avx512_core_amx) return Bf16Gemm::kNative;
    // Without the instructions oneDNN emulates them, at a fifth of the speed of widening.
    if (isa != dnnl::cpu_isa::avx512_core_bf16) return Bf16Gemm::kWidened;
    // VDPBF16PS runs at twice the fp32 rate on AMD's Zen 4 and Intel's Cooper Lake, but at half of it on Intel's cores
    // since Sapphire Rapids: those are meant to use AMX, which a virtual machine may hide.
    const bool half_rate = __builtin_cpu_is("intel") && !__builtin_cpu_is("cooperlake");
    return half_rate ? Bf16Gemm::kWidened : Bf16Gemm::kNative;
  }();
  return preferred;
}

bool native_bf16_gemm_is_possible() {
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::avx512_core:
    case dnnl::cpu_isa::avx512_core_vnni:
    case dnnl::cpu_isa::avx512_core_bf16:
    case dnnl::cpu_isa::avx512_core_amx:
      return true;
    default:
      return false;
  }
}

}  // namespace mantissa::cpu
