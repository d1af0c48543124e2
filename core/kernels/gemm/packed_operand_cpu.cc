#include "core/kernels/gemm/packed_operand_cpu.h"

#include <algorithm>

#include "core/kernels/gemm/gemm_cpu.h"
#include "core/kernels/gemm/packed_cpu.h"

namespace mantissa::cpu {

void PackedOperand::forget() {
  for (Form& form : forms_) form.packed = false;
}

void PackedOperand::plan(const GemmArgs& args) {
  const MicroKernel* const kernel = own_kernel(args.a.dtype(), preferred_bf16_gemm());
  if (kernel == nullptr) return;
  Form& form = forms_[args.trans_b == Transpose::kNo];
  form.words = std::max(form.words, kept_words(args, *kernel));
}

size_t PackedOperand::size_bytes() const {
  return static_cast<size_t>(forms_[0].words + forms_[1].words) * sizeof(uint32_t);
}

PackedOperand::Panels PackedOperand::panels(const GemmOperand& operand, GemmWord word, int64_t words) {
  Form& form = forms_[operand.lines_inner];
  const bool packed = form.packed && form.word == word && form.words == words;
  auto* const data = reinterpret_cast<uint32_t*>(form.memory.reserve(static_cast<size_t>(words) * sizeof(uint32_t)));
  form.words = words;
  form.word = word;
  form.packed = true;
  return {data, packed};
}

}  // namespace mantissa::cpu
