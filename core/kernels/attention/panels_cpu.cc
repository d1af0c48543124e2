#include "core/kernels/attention/panels_cpu.h"

namespace mantissa::cpu {
namespace {

template <bool kPanels>
void multiply(const PairProduct& p, PairTriangle triangle) {
  const MicroKernel& kernel = bf16_micro_kernel();
  const MicroKernel::Run run = (kPanels ? kernel.from_panel : kernel.from_rows)[kPanelColumns / kernel.lanes - 1];
  MicroTile tile{.a = nullptr,
                 .a_stride = p.a_stride,
                 .b = nullptr,
                 .depth = p.depth,
                 .before = nullptr,
                 .bias = nullptr,
                 .c = nullptr,
                 .c_stride = p.c_stride,
                 .store = p.store};
  for (int64_t row = 0; row < p.rows; row += kPanelRows) {
    int64_t begin = 0, columns = p.columns;
    if (triangle == PairTriangle::kLowerResult) columns = std::min(columns, row + kPanelRows);
    if (triangle == PairTriangle::kLowerOperand) tile.depth = std::min(p.depth, (row + kPanelRows) / 2);
    if (triangle == PairTriangle::kUpperOperand) {
      begin = std::min(row / 2, p.depth);
      tile.depth = p.depth - begin;
    }
    tile.a = kPanels ? p.a + row / kPanelRows * p.a_stride + begin * kPanelRows : p.a + row * p.a_stride;
    for (int64_t column = 0; column < columns; column += kPanelColumns) {
      tile.b = p.b + column / kPanelColumns * p.b_stride + begin * kPanelColumns;
      tile.c = p.c + row * p.c_stride + column;
      run(tile);
    }
  }
}

}  // namespace

void multiply_rows(const PairProduct& product, PairTriangle triangle) { multiply<false>(product, triangle); }
void multiply_panels(const PairProduct& product, PairTriangle triangle) { multiply<true>(product, triangle); }

}  // namespace mantissa::cpu
