// PackedOperand: keeps the panels of a matrix for gemm_packed() between products. A linear layer's weight is packed
// twice, along its rows for the forward pass and along its columns for the backward pass.
#pragma once

#include "core/cpu/memory.h"
#include "core/kernels/gemm/args.h"
#include "core/kernels/gemm/panels_cpu.h"

namespace mantissa::cpu {

class PackedOperand final : public OperandCache {
 public:
  void forget() override;
  void plan(const GemmArgs& args) override;
  size_t size_bytes() const override;

  // Memory for the panels of `operand`, and whether they are already packed. If not, the caller packs them now.
  struct Panels {
    uint32_t* data;
    bool packed;
  };
  Panels panels(const GemmOperand& operand, GemmWord word, int64_t words);

 private:
  struct Form {
    Scratch memory;
    int64_t words = 0;
    GemmWord word = GemmWord::kFp32;
    bool packed = false;
  };
  Form forms_[2];  // by GemmOperand::lines_inner
};

}  // namespace mantissa::cpu
