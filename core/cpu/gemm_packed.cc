// b is packed by all threads together. Then they take tasks, blocks of c. A task takes K in
// stretches whose panels stay in the second-level cache and keeps the sums of a stretch for the next one; what is
// rounded to c's dtype is the whole sum. Rows of a are read as they lie; where they cannot be, a task packs its own,
// which then never leave the cache.
#include "core/cpu/gemm_packed.h"

#include <algorithm>

#include "core/backend/kernel_checks.h"
#include "core/base/thread_team.h"
#include "core/cpu/gelu.h"
#include "core/cpu/gemm_panels.h"
#include "core/cpu/gemm_plan.h"
#include "core/cpu/gemm_tile_io.h"
#include "core/cpu/scratch.h"

namespace mantissa::cpu {
namespace {

// Words of K whose panels are used before those that follow. A panel of b (48 columns) then takes 192 KiB.
constexpr int64_t kStretchWords = 1024;
// Words of K, and of b, that are packed at a time: they bound the memory of a large product (16 MiB).
constexpr int64_t kBlockDepthWords = 4 * kStretchWords;
constexpr int64_t kBlockWords = int64_t{1} << 22;
// Words of b that do not push everything else out of the second-level cache and its share of the third.
constexpr int64_t kCachedWords = int64_t{1} << 19;
// Fewer multiplications than this are left to one thread.
constexpr int64_t kParallelProducts = int64_t{1} << 19;

// Columns of a block of b: so many that its panels take kBlockWords, but one panel at least.
Cut cut_columns(int64_t columns, int64_t panel_columns, int64_t depth_words) {
  const int64_t most = std::max<int64_t>(1, kBlockWords / (depth_words * panel_columns)) * panel_columns;
  return cut_evenly(columns, most, panel_columns);
}

class PackedGemm {
 public:
  PackedGemm(const GemmArgs& args, const MicroKernel& kernel);
  void run();

 private:
  // What is packed at a time. K in words.
  struct Block {
    int64_t column, columns, word, words;
    bool first, last;  // of K
  };
  // Words of K of a block, and a task's panels of a for them.
  struct Stretch {
    int64_t begin, words;
    const uint32_t* panels;
  };
  // A part of c, in elements from its first one.
  struct Task {
    int64_t row, row_end, column, column_end;
  };
  void pack_columns(const Block& block) const;
  void multiply(const Block& block) const;
  void run_task(const Block& block, const Task& task) const;
  void pack_rows(const Block& block, const Task& task, const Stretch& stretch, uint32_t* panels, float* row_sums) const;
  void add_bias_gradient(const Block& block, const Task& task, const Stretch& stretch, const float* row_sums) const;
  void run_column(const Block& block, const Task& task, const Stretch& stretch, float* sums) const;
  void store_part(const float* tile, int64_t tile_stride, const Task& part) const;
  void finish_task(const Task& task) const;

  // Tasks on all threads, or on the calling one.
  template <typename Body>
  void run(int64_t tasks, const Body& body) const {
    if (threads_ > 1) return parallel_for(tasks, body);
    for (int64_t task = 0; task < tasks; ++task) body(task);
  }

  // Of the first row that is read from a panel: all of them, or those of an incomplete tile.
  int64_t first_packed_row() const { return packs_rows_ ? 0 : extents_.m / kernel_.rows * kernel_.rows; }
  int64_t elements(int64_t words) const { return words * elements_in(kernel_.word); }
  // Whole vectors that hold the columns of c from `column` on, at most those of a tile.
  int64_t panel_width(int64_t column) const {
    return std::min(kernel_.columns(), round_up(extents_.n - column, kernel_.lanes));
  }

  const GemmArgs& args_;
  const MicroKernel& kernel_;
  const GemmExtents extents_;
  const GemmOperand a_, b_;
  const bool packs_rows_;
  const Cut depth_;    // of K, in words
  const Cut columns_;  // of b and c
  const int threads_;
  const Tensor& product_;  // where the product with its bias goes
  int64_t c_element_bytes_;
  TileStore store_;
  bool direct_;  // tiles are stored by the micro-kernel
  const float* bias_ = nullptr;
  uint32_t* packed_b_ = nullptr;
  float* sums_ = nullptr;  // of the tiles of a block of columns, where K is more than one block
};

PackedGemm::PackedGemm(const GemmArgs& args, const MicroKernel& kernel)
    : args_(args),
      kernel_(kernel),
      extents_(check_args(args)),
      a_{args.a.raw(), args.a.dim(1), args.a.dtype(), args.trans_a == Transpose::kYes, extents_.m, extents_.k},
      b_{args.b.raw(), args.b.dim(1), args.b.dtype(), args.trans_b == Transpose::kNo, extents_.n, extents_.k},
      packs_rows_(!a_.has_rows_of(kernel.word)),
      depth_(cut_evenly(words_in(extents_.k, kernel.word), kBlockDepthWords, 1)),
      columns_(cut_columns(extents_.n, kernel.columns(), depth_.part)),
      threads_(extents_.m * extents_.n * extents_.k < kParallelProducts ? 1 : threads()),
      product_(args.activation == GemmActivation::kGelu ? args.aux : args.c),
      c_element_bytes_(static_cast<int64_t>(size_bytes(product_.dtype()))),
      store_(args.mode == GradientMode::kAccumulate ? TileStore::kAddFp32
             : product_.dtype() == DType::kBF16     ? TileStore::kBf16
                                                    : TileStore::kFp32),
      direct_(product_.dtype() == DType::kF32 || (product_.dtype() == DType::kBF16 && kernel.stores_bf16)) {}

void PackedGemm::run() {
  thread_local Scratch scratch, bias_scratch;
  bias_ = bias_as_fp32(args_.bias, product_.dtype(), bias_scratch);
  const int64_t columns = round_up(columns_.part, kernel_.columns());
  const auto lay_out = [&](ScratchLayout layout) {
    packed_b_ = layout.take<uint32_t>(columns * depth_.part);
    sums_ = depth_.count() > 1 ? layout.take<float>(round_up(extents_.m, kernel_.rows) * columns) : nullptr;
    return layout.used_bytes();
  };
  lay_out(ScratchLayout(scratch.reserve(lay_out(ScratchLayout()))));
  for (int64_t j = 0; j < columns_.count(); ++j) {
    for (int64_t d = 0; d < depth_.count(); ++d) {
      const Block block{.column = columns_.begin(j),
                        .columns = columns_.size(j),
                        .word = depth_.begin(d),
                        .words = depth_.size(d),
                        .first = d == 0,
                        .last = d + 1 == depth_.count()};
      pack_columns(block);
      multiply(block);
    }
  }
}

void PackedGemm::pack_columns(const Block& block) const {
  const Cut panels{block.columns, kernel_.columns()};
  run(panels.count(), [&](int64_t index) {
    const int64_t column = block.column + panels.begin(index), width = panel_width(column);
    pack_panels(b_, {.line = column,
                     .width = width,
                     .panels = 1,
                     .panel_stride = width * block.words,
                     .k = elements(block.word),
                     .depth = std::min(elements(block.words), extents_.k - elements(block.word)),
                     .word = kernel_.word,
                     .panel = packed_b_ + panels.begin(index) * block.words});
  });
}

void PackedGemm::multiply(const Block& block) const {
  const GemmTasks tasks = plan_tasks({.m = extents_.m,
                                      .n = block.columns,
                                      .tile_rows = kernel_.rows,
                                      .tile_columns = kernel_.columns(),
                                      .threads = threads_,
                                      .packs_rows = packs_rows_});
  // With rows outermost a thread's share is of rows that it is likely to have written, but goes over all of b again and
  // again.
  const bool rows_outermost = block.words * block.columns <= kCachedWords;
  run(tasks.count(), [&](int64_t index) {
    const int64_t i = rows_outermost ? index / tasks.columns.count() : index % tasks.rows.count();
    const int64_t j = rows_outermost ? index % tasks.columns.count() : index / tasks.rows.count();
    const int64_t row = tasks.rows.begin(i), column = block.column + tasks.columns.begin(j);
    run_task(block, {.row = row,
                     .row_end = row + tasks.rows.size(i),
                     .column = column,
                     .column_end = column + tasks.columns.size(j)});
  });
}

void PackedGemm::run_task(const Block& block, const Task& task) const {
  thread_local Scratch scratch;
  const Cut stretches = cut_evenly(block.words, kStretchWords, 1);
  const int64_t tile_elements = kernel_.rows * kernel_.columns();
  const Cut column_tiles{task.column_end - task.column, kernel_.columns()};
  const int64_t own_row_tiles = Cut{task.row_end - task.row, kernel_.rows}.count();
  const bool own_sums = sums_ == nullptr && stretches.count() > 1;
  // Of the tasks that pack the same rows, the first adds them up.
  const bool adds_rows = args_.bias_gradient.defined() && task.column == 0;
  uint32_t* panels = nullptr;
  float *sums = nullptr, *row_sums = nullptr;
  const auto lay_out = [&](ScratchLayout layout) {
    panels = layout.take<uint32_t>((packs_rows_ ? own_row_tiles : 1) * kernel_.rows * stretches.part);
    sums = own_sums ? layout.take<float>(own_row_tiles * column_tiles.count() * tile_elements) : nullptr;
    row_sums = adds_rows ? layout.take<float>(own_row_tiles * kernel_.rows) : nullptr;
    return layout.used_bytes();
  };
  lay_out(ScratchLayout(scratch.reserve(lay_out(ScratchLayout()))));
  int64_t row_tiles = own_row_tiles;  // tiles of a column of tiles follow each other
  if (sums_ != nullptr) {
    row_tiles = Cut{extents_.m, kernel_.rows}.count();
    const int64_t first_column = (task.column - block.column) / kernel_.columns();
    sums = sums_ + (first_column * row_tiles + task.row / kernel_.rows) * tile_elements;
  }
  for (int64_t s = 0; s < stretches.count(); ++s) {
    const Stretch stretch{.begin = stretches.begin(s), .words = stretches.size(s), .panels = panels};
    pack_rows(block, task, stretch, panels, row_sums);
    if (adds_rows) add_bias_gradient(block, task, stretch, row_sums);
    for (int64_t j = 0; j < column_tiles.count(); ++j) {
      run_column(block,
                 {.row = task.row,
                  .row_end = task.row_end,
                  .column = task.column + column_tiles.begin(j),
                  .column_end = task.column_end},
                 stretch, sums == nullptr ? nullptr : sums + j * row_tiles * tile_elements);
    }
  }
  if (block.last) finish_task(task);
}

void PackedGemm::pack_rows(const Block& block, const Task& task, const Stretch& stretch, uint32_t* panels,
                           float* row_sums) const {
  const int64_t first = std::max(task.row, first_packed_row());
  if (first >= task.row_end) return;
  const int64_t k = elements(block.word + stretch.begin);
  pack_panels(a_, {.line = first,
                   .width = kernel_.rows,
                   .panels = Cut{task.row_end - first, kernel_.rows}.count(),
                   .panel_stride = kernel_.rows * stretch.words,
                   .k = k,
                   .depth = std::min(elements(stretch.words), extents_.k - k),
                   .word = kernel_.word,
                   .panel = panels,
                   .sums = row_sums});
}

void PackedGemm::add_bias_gradient(const Block& block, const Task& task, const Stretch& stretch,
                                   const float* row_sums) const {
  const bool starts = block.first && stretch.begin == 0 && args_.bias_gradient_mode == GradientMode::kWrite;
  float* const out = args_.bias_gradient.data<float>();
  for (int64_t row = task.row; row < task.row_end; ++row) {
    out[row] = (starts ? 0.0f : out[row]) + row_sums[row - task.row];
  }
}

// A column of tiles. `sums` holds the tiles' sums so far, each (rows, vectors of columns), and takes those that others
// will add to; null where a tile is done at once.
void PackedGemm::run_column(const Block& block, const Task& task, const Stretch& stretch, float* sums) const {
  alignas(64) float buffer[MicroKernel::kMaxElements];
  const int64_t columns = std::min(kernel_.columns(), extents_.n - task.column), width = panel_width(task.column);
  const bool first = block.first && stretch.begin == 0;
  const bool last = block.last && stretch.begin + stretch.words == block.words;
  const int64_t c_bytes = extents_.n * c_element_bytes_;
  std::byte* c = product_.raw() + task.row * c_bytes + task.column * c_element_bytes_;
  MicroTile tile{
      .a = nullptr,
      .a_stride = a_.columns / elements_in(kernel_.word),
      .b = packed_b_ + (task.column - block.column) * block.words + stretch.begin * width,
      .depth = stretch.words,
      .before = nullptr,
      .bias = nullptr,
      .c = nullptr,
      .c_stride = width,
      .store = TileStore::kFp32,
  };
  const MicroKernel::Run run_rows = kernel_.from_rows[width / kernel_.lanes - 1],
                         run_panel = kernel_.from_panel[width / kernel_.lanes - 1];
  const auto* a = reinterpret_cast<const uint32_t*>(a_.at(task.row, elements(block.word + stretch.begin)));
  const uint32_t* panel = stretch.panels;
  for (int64_t row = task.row; row < task.row_end; row += kernel_.rows) {
    const int64_t rows = std::min(kernel_.rows, extents_.m - row);
    tile.before = first ? nullptr : sums;
    if (!last) {
      tile.c = sums;
    } else if (rows == kernel_.rows && columns == width && direct_) {
      tile.c = c, tile.c_stride = extents_.n, tile.store = store_;
      tile.bias = bias_ != nullptr ? bias_ + task.column : nullptr;
    } else {
      tile.c = buffer, tile.c_stride = width, tile.store = TileStore::kFp32, tile.bias = nullptr;
    }
    if (row < first_packed_row()) {
      tile.a = a;
      run_rows(tile);
    } else {
      tile.a = panel;
      run_panel(tile);
      panel += kernel_.rows * stretch.words;
    }
    if (tile.c == buffer) store_part(buffer, width, {row, row + rows, task.column, task.column + columns});
    if (sums != nullptr) sums += kernel_.rows * kernel_.columns();
    a += kernel_.rows * tile.a_stride;
    c += kernel_.rows * c_bytes;
  }
}

void PackedGemm::store_part(const float* tile, int64_t tile_stride, const Task& part) const {
  store_tile({.tile = tile,
              .tile_stride = tile_stride,
              .bias = bias_ != nullptr ? bias_ + part.column : nullptr,
              .rows = part.row_end - part.row,
              .columns = part.column_end - part.column,
              .stride = extents_.n,
              .to = product_.dtype(),
              .mode = args_.mode,
              .dst = product_.raw() + (part.row * extents_.n + part.column) * c_element_bytes_});
}

// The activation, of numbers that are still in the cache.
void PackedGemm::finish_task(const Task& task) const {
  const MatrixPart part{.row = task.row,
                        .rows = task.row_end - task.row,
                        .column = task.column,
                        .columns = task.column_end - task.column};
  if (args_.activation == GemmActivation::kGelu) {
    gelu_forward_part({.x = args_.aux, .y = args_.c, .form = args_.form}, part);
  } else if (args_.activation == GemmActivation::kGeluGradient) {
    gelu_backward_part({.x = args_.aux, .dy = args_.c, .dx = args_.c, .form = args_.form}, part);
  }
}

}  // namespace

void gemm_packed(const GemmArgs& args, const MicroKernel& kernel) { PackedGemm(args, kernel).run(); }

}  // namespace mantissa::cpu
