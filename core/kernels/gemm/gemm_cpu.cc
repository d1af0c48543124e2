// All threads pack b together, block by block. Then they take tasks, which are blocks of c. If a is small enough to be
// read again for every panel of b, tasks pack the panels that they use instead. Cached panels are packed once, for all
// of b.
#include "core/kernels/gemm/gemm_cpu.h"

#include <algorithm>

#include "core/base/thread_team.h"
#include "core/kernels/gemm/packed_cpu.h"
#include "core/kernels/gemm/steps.h"

namespace mantissa::cpu {
namespace {

// Words of K, and of b, packed at a time. Bounds the memory of a large product (16 MiB).
constexpr int64_t kBlockDepthWords = 4 * kStretchWords;
constexpr int64_t kBlockWords = int64_t{1} << 22;
// Words of b that fit in the second-level cache and its share of the third without evicting everything else.
constexpr int64_t kCachedWords = int64_t{1} << 19;
// Words of a that stay in the second-level cache while tasks iterate over them for each panel of b. Tasks then pack
// their own panels, which never leave the cache either. From the third-level cache this costs more than it saves.
constexpr int64_t kStreamedWords = int64_t{1} << 18;
// With more rows of a, packing b takes less than a hundredth of the time: keeping its panels is not worth their memory.
constexpr int64_t kMostRowsForKept = 2048;
// Products with fewer multiplications run on one thread.
constexpr int64_t kParallelProducts = int64_t{1} << 19;
// With 1024 words of K, a task reads 512 KiB of a, and one panel of b of 192 KiB at a time.
constexpr int64_t kTaskRows = 128;
constexpr int64_t kLeastPackedRows = 32;
constexpr int64_t kTaskColumns = 480;

// Columns of a block of b: its panels take up to kBlockWords, but at least one panel.
Cut cut_columns(int64_t columns, int64_t panel_columns, int64_t depth_words) {
  const int64_t most = std::max<int64_t>(1, kBlockWords / (depth_words * panel_columns)) * panel_columns;
  return cut_evenly(columns, most, panel_columns);
}

// Whether a task covers all rows of a for one panel of b.
bool takes_panels(const GemmJob& job, int64_t threads) {
  return !job.packs_rows && job.extents.m * job.depth_words() <= kStreamedWords &&
         Cut{job.extents.n, job.kernel.columns()}.count() >= GemmTasks::kPerThread * threads;
}

// Words of the panels of b that are kept in args.b_cache. 0: b is packed on every call.
int64_t kept_words(const GemmArgs& args, const MicroKernel& kernel) {
  const GemmExtents e = check_args(args);
  if (e.m > kMostRowsForKept) return 0;
  return round_up(e.n, kernel.columns()) * words_in(e.k, kernel.word);
}

float inverse_of(const Tensor& scale) { return scale.defined() ? 1.0f / *scale.data<float>() : 1.0f; }

GemmJob make_job(const GemmArgs& args, const MicroKernel& kernel) {
  const GemmExtents e = check_args(args);
  const Tensor& product = args.activation == GemmActivation::kGelu ? args.aux : args.c;
  const bool scaled = args.a_scale.defined() || args.b_scale.defined();
  const GemmOperand a{args.a.raw(), args.a.dim(1), args.a.dtype(), args.trans_a == Transpose::kYes, e.m, e.k};
  return {
      .args = args,
      .kernel = kernel,
      .extents = e,
      .a = a,
      .b = {args.b.raw(), args.b.dim(1), args.b.dtype(), args.trans_b == Transpose::kNo, e.n, e.k},
      .packs_rows = !a.has_rows_of(kernel.word),
      .own_columns = false,
      .product = product,
      .c_element_bytes = static_cast<int64_t>(size_bytes(product.dtype())),
      .store = args.mode == GradientMode::kAccumulate ? TileStore::kAddFp32
               : product.dtype() == DType::kBF16      ? TileStore::kBf16
                                                      : TileStore::kFp32,
      .direct = !scaled && (product.dtype() == DType::kF32 || (product.dtype() == DType::kBF16 && kernel.stores_bf16)),
      .factors = {inverse_of(args.a_scale), inverse_of(args.b_scale)}};
}

// A product, its partition, and the panels of b.
class PackedGemm {
 public:
  PackedGemm(const GemmArgs& args, const MicroKernel& kernel)
      : job_(make_job(args, kernel)),
        threads_(job_.extents.m * job_.extents.n * job_.extents.k < kParallelProducts ? 1 : threads()),
        kept_words_(args.b_cache != nullptr ? kept_words(args, kernel) : 0),
        takes_panels_(takes_panels(job_, threads_)) {
    job_.own_columns = takes_panels_ && kept_words_ == 0;
    const int64_t n = job_.extents.n, depth = job_.depth_words();
    const bool whole = takes_panels_ || kept_words_ > 0;
    depth_ = whole ? Cut{depth, depth} : cut_evenly(depth, kBlockDepthWords, 1);
    columns_ = whole ? Cut{n, n} : cut_columns(n, kernel.columns(), depth_.part);
  }

  const GemmJob& job() const { return job_; }
  // The operands are packed and multiplied block by block: of columns, and within them of K.
  int64_t blocks() const { return columns_.count() * depth_.count(); }
  GemmBlock block(int64_t index) const {
    const int64_t j = index / depth_.count(), d = index % depth_.count();
    return {columns_.begin(j), columns_.size(j), depth_.begin(d), depth_.size(d), d == 0, d + 1 == depth_.count()};
  }
  // Takes memory for all blocks. Returns whether blocks of b are to be packed: not if tasks do it, or a cache has them.
  bool take_memory() {
    thread_local Scratch scratch, bias_scratch;
    job_.bias = bias_as_fp32(job_.args.bias, job_.product.dtype(), bias_scratch);
    const int64_t columns = round_up(columns_.part, job_.kernel.columns());
    const auto lay_out = [&](ScratchLayout layout) {
      job_.packed_b = job_.own_columns || kept_words_ > 0 ? nullptr : layout.take<uint32_t>(columns * depth_.part);
      job_.sums =
          depth_.count() > 1 ? layout.take<float>(round_up(job_.extents.m, job_.kernel.rows) * columns) : nullptr;
      return layout.used_bytes();
    };
    lay_out(ScratchLayout(scratch.reserve(lay_out(ScratchLayout()))));
    if (kept_words_ == 0) return !job_.own_columns;
    auto* const cache = static_cast<PackedOperand*>(job_.args.b_cache);
    const auto panels = cache->panels(job_.b, job_.kernel.word, kept_words_);
    job_.packed_b = panels.data;
    return !panels.packed;
  }
  void pack_columns(const GemmBlock& block) const {
    const Cut panels{block.columns, job_.kernel.columns()};
    run(panels.count(), [&](int64_t index) {
      pack_panels(job_.b, job_.panel_of_b(block.column + panels.begin(index), block.word, block.words,
                                          job_.packed_b + panels.begin(index) * block.words));
    });
  }
  GemmTasks tasks_of(const GemmBlock& block) const {
    if (takes_panels_) return {{job_.extents.m, job_.extents.m}, {block.columns, job_.kernel.columns()}};
    return plan_tasks(
        {job_.extents.m, block.columns, job_.kernel.rows, job_.kernel.columns(), threads_, job_.packs_rows});
  }

  // Runs tasks on all threads, or on the calling thread.
  template <typename Body>
  void run(int64_t tasks, const Body& body) const {
    if (threads_ > 1) return parallel_for(tasks, body);
    for (int64_t task = 0; task < tasks; ++task) body(task);
  }

 private:
  GemmJob job_;
  const int threads_;
  const int64_t kept_words_;  // words of panels in args.b_cache; 0: panels are in scratch
  const bool takes_panels_;   // a task is a panel of b
  Cut depth_;                 // of K, in words
  Cut columns_;               // of b and c
};

// The micro-kernel for these operands; nullptr where a library multiplies them.
const MicroKernel* kernel_for(const GemmArgs& args, Bf16Gemm bf16) {
  const MicroKernel* const kernel = own_kernel(args.a.dtype(), bf16);
  const bool scaled = args.a_scale.defined() || args.b_scale.defined();
  // oneDNN's product would have to be divided in an extra pass, after it was rounded.
  return kernel == nullptr && scaled ? own_kernel(args.a.dtype(), Bf16Gemm::kWidened) : kernel;
}

void gemm_by_library(const GemmArgs& args) {
  check_args(args);  // as a whole: the messages of its steps would name other kernels
  if (args.bias_gradient.defined()) {
    gemm_then_bias_gradient(args, gemm_library, [](const auto& step) { run(step); });
  } else if (args.activation == GemmActivation::kNone) {
    gemm_library(args);
  } else {
    gemm_in_steps(args, gemm_library, [](const auto& step) { run(step); });
  }
}

}  // namespace

void gemm_packed(const GemmArgs& args, const MicroKernel& kernel) {
  PackedGemm gemm(args, kernel);
  const bool packs = gemm.take_memory();
  for (int64_t index = 0; index < gemm.blocks(); ++index) {
    const GemmBlock block = gemm.block(index);
    if (packs) gemm.pack_columns(block);
    const GemmTasks tasks = gemm.tasks_of(block);
    // With rows outermost, a thread's share consists of rows that it probably wrote itself, but it reads all of b
    // repeatedly.
    const bool rows_outermost = block.words * block.columns <= kCachedWords;
    gemm.run(tasks.count(), [&](int64_t task) {
      const int64_t i = rows_outermost ? task / tasks.columns.count() : task % tasks.rows.count();
      const int64_t j = rows_outermost ? task % tasks.columns.count() : task / tasks.rows.count();
      run_gemm_task(
          gemm.job(), block,
          {tasks.rows.begin(i), tasks.rows.size(i), block.column + tasks.columns.begin(j), tasks.columns.size(j)});
    });
  }
}

Cut cut_evenly(int64_t extent, int64_t most, int64_t multiple) {
  const int64_t parts = (extent + most - 1) / most;
  return {extent, round_up((extent + parts - 1) / parts, multiple)};
}

GemmTasks plan_tasks(const GemmTaskShape& shape) {
  const auto& [m, n, tile_rows, tile_columns, threads, packs_rows] = shape;
  const int64_t least_rows = round_up(std::min(m, packs_rows ? kLeastPackedRows : tile_rows), tile_rows);
  int64_t rows = round_up(std::min(m, kTaskRows), tile_rows),
          columns = round_up(packs_rows ? n : std::min(n, kTaskColumns), tile_columns);
  const auto tasks = [&] { return GemmTasks{cut_evenly(m, rows, tile_rows), cut_evenly(n, columns, tile_columns)}; };
  while (threads > 1 && tasks().count() < GemmTasks::kPerThread * threads) {
    const bool fewer_rows = rows > least_rows && (packs_rows || rows >= columns);
    if (fewer_rows || (rows > least_rows && columns == tile_columns)) {
      rows = std::max(least_rows, round_up(rows / 2, tile_rows));
    } else if (columns > tile_columns) {
      columns = round_up(columns / 2, tile_columns);
    } else {
      break;
    }
  }
  return tasks();
}

const float* bias_as_fp32(const Tensor& bias, DType c_dtype, Scratch& scratch) {
  if (!bias.defined()) return nullptr;
  if (bias.dtype() == DType::kF32 && c_dtype == DType::kF32) return bias.data<float>();
  const int64_t n = bias.numel();
  float* const converted = scratch.reserve_floats(n);
  dispatch(bias.dtype(), [&]<typename From>() {
    dispatch(c_dtype, [&]<typename To>() {
      const From* const values = bias.data<From>();
      for (int64_t i = 0; i < n; ++i) converted[i] = to_float(from_float<To>(to_float(values[i])));
    });
  });
  return converted;
}

void PackedOperand::forget() {
  for (Form& form : forms_) form.packed = false;
}

void PackedOperand::plan(const GemmArgs& args) {
  if (args.a.dtype() == DType::kF64) return;  // its products keep nothing
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

void run(const GemmArgs& args) {
  MANTISSA_CHECK(!args.a.defined() || args.a.dtype() != DType::kU8, "[gemm] a CPU multiplies no codes");
  const bool is_tf32 = args.fp32_math == Fp32Math::kTf32 && args.a.defined() && args.a.dtype() == DType::kF32;
  if (is_tf32) return gemm_tf32(args);
  if (const MicroKernel* const kernel = kernel_for(args, preferred_bf16_gemm())) return gemm_packed(args, *kernel);
  gemm_by_library(args);
}

const MicroKernel* own_kernel(DType dtype, Bf16Gemm bf16) {
  if (dtype != DType::kBF16 || bf16 == Bf16Gemm::kWidened) return &fp32_micro_kernel();
  return bf16 == Bf16Gemm::kDotProducts ? &bf16_micro_kernel() : nullptr;
}

void gemm(const GemmArgs& args, Bf16Gemm bf16) {
  if (const MicroKernel* const kernel = kernel_for(args, bf16)) return gemm_packed(args, *kernel);
  gemm_by_library(args);
}

}  // namespace mantissa::cpu
