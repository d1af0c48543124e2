// A task processes K in stretches whose panels stay in the second-level cache. It carries the sums of a stretch over to
// the next one, so only the whole sum is rounded to c's dtype. Rows of a are read as stored if possible. Otherwise a
// task packs its own, which then never leave the cache.
#include <algorithm>

#include "core/cpu/memory.h"
#include "core/kernels/activation/args.h"
#include "core/kernels/gemm/packed_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/gemm/task_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// A tile t that the micro-kernel did not store itself: c = round(t + bias), or c += t with kAccumulate (c is then
// fp32). t is the tile of fp32 sums times factors[0], then times factors[1]. Its rows are `stride` elements apart.
HWY_INLINE FloatVec load_scaled(const GemmJob& job, const float* tile, int64_t count) {
  const FloatTag df;
  return hn::Mul(hn::Mul(load(tile, count), hn::Set(df, job.factors[0])), hn::Set(df, job.factors[1]));
}

template <typename T>
void round_tile(const GemmJob& job, const float* tile, int64_t stride, const MatrixPart& part, T* dst) {
  const float* const bias = job.bias != nullptr ? job.bias + part.column : nullptr;
  for (int64_t r = 0; r < part.rows; ++r, dst += job.extents.n, tile += stride) {
    if (bias != nullptr) {
      for_each_vector(part.columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
        store(hn::Add(load_scaled(job, tile + i, count), load(bias + i, count)), dst + i, count);
      });
    } else {
      for_each_vector(part.columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
        store(load_scaled(job, tile + i, count), dst + i, count);
      });
    }
  }
}

void add_tile(const GemmJob& job, const float* tile, int64_t stride, const MatrixPart& part, float* dst) {
  for (int64_t r = 0; r < part.rows; ++r, dst += job.extents.n, tile += stride) {
    for_each_vector(part.columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      store(hn::Add(load(dst + i, count), load_scaled(job, tile + i, count)), dst + i, count);
    });
  }
}

void store_tile(const GemmJob& job, const float* tile, int64_t stride, const MatrixPart& part) {
  std::byte* const dst = job.product.raw() + (part.row * job.extents.n + part.column) * job.c_element_bytes;
  if (job.args.mode == GradientMode::kAccumulate) {
    return add_tile(job, tile, stride, part, reinterpret_cast<float*>(dst));
  }
  dispatch(job.product.dtype(), [&]<typename T>() { round_tile(job, tile, stride, part, reinterpret_cast<T*>(dst)); });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(store_tile);

namespace {

// A stretch of K in words, and a task's panels of a for it.
struct Stretch {
  int64_t begin, words;
  const uint32_t* panels;
};

void pack_rows(const GemmJob& job, const GemmBlock& block, const MatrixPart& part, const Stretch& stretch,
               uint32_t* panels, float* row_sums) {
  const int64_t first = std::max(part.row, job.first_packed_row());
  if (first >= part.row + part.rows) return;
  const int64_t k = job.elements(block.word + stretch.begin);
  pack_panels(job.a, {.line = first,
                      .width = job.kernel.rows,
                      .panels = Cut{part.row + part.rows - first, job.kernel.rows}.count(),
                      .panel_stride = job.kernel.rows * stretch.words,
                      .k = k,
                      .depth = std::min(job.elements(stretch.words), job.extents.k - k),
                      .word = job.kernel.word,
                      .panel = panels,
                      .sums = row_sums});
}

void add_bias_gradient(const GemmJob& job, const GemmBlock& block, const MatrixPart& part, const Stretch& stretch,
                       const float* row_sums) {
  const bool starts = block.first && stretch.begin == 0 && job.args.bias_gradient_mode == GradientMode::kWrite;
  float* const out = job.args.bias_gradient.data<float>();
  for (int64_t i = 0; i < part.rows; ++i) out[part.row + i] = (starts ? 0.0f : out[part.row + i]) + row_sums[i];
}

// The part of b that this thread packs after stretch `index` of a panel: the next stretch, or the first stretch of the
// next panel, which is likely to be this thread's as well. Its width is 0 after the last panel.
PackArgs next_own_panel(const GemmJob& job, int64_t column, const Cut& stretches, int64_t index) {
  const bool same_panel = index + 1 < stretches.count();
  if (!same_panel) column += job.kernel.columns();
  if (column >= job.extents.n) return {};
  const int64_t next = same_panel ? index + 1 : 0;
  return job.panel_of_b(column, stretches.begin(next), stretches.size(next), nullptr);
}

// Computes a column of tiles. `sums` holds the tiles' partial sums, each (rows, vectors of columns), and receives sums
// that are not final; null if tiles are finished at once. Meanwhile prefetches the panel of b that is packed next.
void run_column(const GemmJob& job, const GemmBlock& block, const MatrixPart& part, const Stretch& stretch,
                const uint32_t* b, const PackArgs& next_panel, float* sums) {
  alignas(64) float buffer[MicroKernel::kMaxElements];
  const int64_t columns = std::min(job.kernel.columns(), job.extents.n - part.column),
                width = job.panel_width(part.column);
  const bool first = block.first && stretch.begin == 0;
  const bool last = block.last && stretch.begin + stretch.words == block.words;
  const int64_t c_bytes = job.extents.n * job.c_element_bytes;
  std::byte* c = job.product.raw() + part.row * c_bytes + part.column * job.c_element_bytes;
  MicroTile tile{
      .a_stride = job.a.columns / elements_in(job.kernel.word), .b = b, .depth = stretch.words, .c_stride = width};
  const MicroKernel::Run run_rows = job.kernel.from_rows[width / job.kernel.lanes - 1],
                         run_panel = job.kernel.from_panel[width / job.kernel.lanes - 1];
  const auto* a = reinterpret_cast<const uint32_t*>(job.a.at(part.row, job.elements(block.word + stretch.begin)));
  const uint32_t* panel = stretch.panels;
  const Cut row_tiles{part.rows, job.kernel.rows};
  for (int64_t row = part.row; row < part.row + part.rows; row += job.kernel.rows) {
    if (next_panel.width > 0) prefetch_panels(job.b, next_panel, (row - part.row) / job.kernel.rows, row_tiles.count());
    const int64_t rows = std::min(job.kernel.rows, job.extents.m - row);
    tile.before = first ? nullptr : sums;
    if (!last) {
      tile.c = sums;
    } else if (rows == job.kernel.rows && columns == width && job.direct) {
      tile.c = c, tile.c_stride = job.extents.n, tile.store = job.store;
      tile.bias = job.bias != nullptr ? job.bias + part.column : nullptr;
    } else {
      tile.c = buffer, tile.c_stride = width, tile.store = TileStore::kFp32, tile.bias = nullptr;
    }
    if (row < job.first_packed_row()) {
      tile.a = a;
      run_rows(tile);
    } else {
      tile.a = panel;
      run_panel(tile);
      panel += job.kernel.rows * stretch.words;
    }
    if (tile.c == buffer) {
      HWY_DYNAMIC_DISPATCH(store_tile)(job, buffer, width, {row, rows, part.column, columns});
    }
    if (sums != nullptr) sums += job.kernel.rows * job.kernel.columns();
    a += job.kernel.rows * tile.a_stride;
    c += job.kernel.rows * c_bytes;
  }
}

// Applies the activation while the part is still in the cache.
void activate(const GemmJob& job, const MatrixPart& part) {
  if (job.args.activation == GemmActivation::kGelu) {
    gelu_forward_part({.x = job.args.aux, .y = job.args.c, .form = job.args.form}, part);
  } else if (job.args.activation == GemmActivation::kGeluGradient) {
    gelu_backward_part({.x = job.args.aux, .dy = job.args.c, .dx = job.args.c, .form = job.args.form}, part);
  }
}

}  // namespace

void run_gemm_task(const GemmJob& job, const GemmBlock& block, const MatrixPart& part) {
  thread_local Scratch scratch;
  const Cut stretches = cut_evenly(block.words, kStretchWords, 1);
  const int64_t tile_elements = job.kernel.rows * job.kernel.columns();
  const Cut column_tiles{part.columns, job.kernel.columns()};
  const int64_t own_row_tiles = Cut{part.rows, job.kernel.rows}.count();
  const bool own_sums = job.sums == nullptr && stretches.count() > 1;
  // Several tasks pack the same rows; only the first one sums them.
  const bool adds_rows = job.args.bias_gradient.defined() && part.column == 0;
  uint32_t *panels = nullptr, *own_panel = nullptr;
  float *sums = nullptr, *row_sums = nullptr;
  const auto lay_out = [&](ScratchLayout layout) {
    panels = layout.take<uint32_t>((job.packs_rows ? own_row_tiles : 1) * job.kernel.rows * stretches.part);
    own_panel = job.own_columns ? layout.take<uint32_t>(job.kernel.columns() * stretches.part) : nullptr;
    sums = own_sums ? layout.take<float>(own_row_tiles * column_tiles.count() * tile_elements) : nullptr;
    row_sums = adds_rows ? layout.take<float>(own_row_tiles * job.kernel.rows) : nullptr;
    return layout.used_bytes();
  };
  lay_out(ScratchLayout(scratch.reserve(lay_out(ScratchLayout()))));
  int64_t row_tiles = own_row_tiles;  // distance in tiles between columns of tiles
  if (job.sums != nullptr) {
    row_tiles = Cut{job.extents.m, job.kernel.rows}.count();
    const int64_t first_column = (part.column - block.column) / job.kernel.columns();
    sums = job.sums + (first_column * row_tiles + part.row / job.kernel.rows) * tile_elements;
  }
  for (int64_t s = 0; s < stretches.count(); ++s) {
    const Stretch stretch{.begin = stretches.begin(s), .words = stretches.size(s), .panels = panels};
    pack_rows(job, block, part, stretch, panels, row_sums);
    if (adds_rows) add_bias_gradient(job, block, part, stretch, row_sums);
    for (int64_t j = 0; j < column_tiles.count(); ++j) {
      const MatrixPart column{part.row, part.rows, part.column + column_tiles.begin(j), column_tiles.size(j)};
      const uint32_t* b = own_panel;
      PackArgs next{};
      if (job.own_columns) {
        pack_panels(job.b, job.panel_of_b(column.column, stretch.begin, stretch.words, own_panel));
        next = next_own_panel(job, column.column, stretches, s);
      } else {
        b = job.packed_b + (column.column - block.column) * block.words +
            stretch.begin * job.panel_width(column.column);
      }
      run_column(job, block, column, stretch, b, next,
                 sums == nullptr ? nullptr : sums + j * row_tiles * tile_elements);
    }
  }
  if (block.last) activate(job, part);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
