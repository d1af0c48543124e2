// AdamW in a single pass in fp32, which also writes the low-precision weight: see args.h.
#include "core/kernels/optimizer/args.h"

#include <algorithm>
#include <type_traits>

#include "core/kernels/check_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/optimizer/adamw_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/digest/digest-inl.h"
#include "core/kernels/optimizer/adamw-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// ---- Digests of state

// The digests of elements [begin, begin + count) of the arguments, a block.
class BlockDigests {
 public:
  BlockDigests(const AdamWArgs& args, int64_t begin) : args_(args), begin_(begin) {}

  // Adds elements [first, first + n) of the state that is read or written; from the first to the last.
  void add_read(int64_t first, int64_t n) { add_state(first, n, read); }
  void add_next(int64_t first, int64_t n) { add_state(first, n, next); }

  void add_to(StateDigests& digests, int64_t count) {
    if (args_.weight.defined() && !args_.is_state(StateDigests::kWeight)) {
      next[StateDigests::kWeight].add(args_.weight, begin_, count);
    }
    for (int part = 0; part < StateDigests::kMAbsmax; ++part) {
      read[part].add_to(digests.read[part], begin_);
      next[part].add_to(digests.next[part], begin_);
    }
  }

  RunningDigest read[StateDigests::kMAbsmax], next[StateDigests::kMAbsmax];  // by part

 private:
  void add_state(int64_t first, int64_t n, RunningDigest* sums) {
    const auto parts = args_.parts();
    for (int part = 0; part < StateDigests::kMAbsmax; ++part) {
      const Tensor& tensor = *parts[static_cast<size_t>(part)];
      if (tensor.defined() && args_.is_state(part)) sums[part].add(tensor, first, n);
    }
  }

  const AdamWArgs& args_;
  const int64_t begin_;
};

// A block has too few scales of codes for a tile: they are added at once.
void add_scales(const AdamWArgs& args, Digest* digests) {
  for (const int part : {StateDigests::kMAbsmax, StateDigests::kVAbsmax}) {
    const Tensor& scales = *args.parts()[static_cast<size_t>(part)];
    if (!scales.defined()) continue;
    RunningDigest sums;
    sums.add(scales, 0, scales.numel());
    sums.add_to(digests[part], 0);
  }
}

// Calls update(begin, count, of_block) for blocks in parallel; of_block is null if no digests are wanted.
template <typename Update>
void update_blocks(const AdamWArgs& args, StateDigests* digests, const Update& update) {
  static_assert(kBlockElements % kDigestTile == 0);
  if (digests != nullptr) add_scales(args, digests->read);
  parallel_blocks(args.numel(), [&](int64_t begin, int64_t count) {
    if (digests == nullptr) return update(begin, count, nullptr);
    BlockDigests of_block(args, begin);
    update(begin, count, &of_block);
    of_block.add_to(*digests, count);
  });
  if (digests != nullptr) add_scales(args, digests->next);
}

// ---- Wide state: masters and second moments in fp32, first moments float. One pass; a stochastically rounded weight
// is written block by block, from masters that are still in the cache: its random words come for several vectors at a
// time.

// Calls update(i, count) for the vectors of n elements, with the digests of master, m and v around it: memory is read
// and written once. A pass of their own over pieces in the nearest cache waits for memory instead.
template <typename M, typename Update>
HWY_INLINE void update_digested(const float* master, const M* m, const float* v, int64_t begin, int64_t n,
                                BlockDigests& of_block, const Update& update) {
  const int64_t whole = n / kDigestTile * kDigestTile, lanes = group_lanes();
  for (int64_t tile = 0; tile < whole; tile += kDigestTile) {
    for (int64_t column = 0; column < kDigestColumns; column += lanes) {
      auto master_read = hn::Zero(GroupTag()), m_read = master_read, v_read = master_read;
      auto master_next = master_read, m_next = master_read, v_next = master_read;
      for (int64_t row = 0; row < kDigestTile; row += kDigestColumns) {
        const int64_t i = tile + row + column;
        master_read = hn::Xor(master_read, load_items(master + i));
        m_read = hn::Xor(m_read, load_items(m + i));
        v_read = hn::Xor(v_read, load_items(v + i));
        update(i, lanes);
        master_next = hn::Xor(master_next, load_items(master + i));
        m_next = hn::Xor(m_next, load_items(m + i));
        v_next = hn::Xor(v_next, load_items(v + i));
      }
      of_block.read[StateDigests::kMaster].add(master_read);
      of_block.read[StateDigests::kM].add(m_read);
      of_block.read[StateDigests::kV].add(v_read);
      of_block.next[StateDigests::kMaster].add(master_next);
      of_block.next[StateDigests::kM].add(m_next);
      of_block.next[StateDigests::kV].add(v_next);
    }
  }
  if (whole == n) return;
  of_block.add_read(begin + whole, n - whole);
  for_each_vector(n - whole, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA { update(whole + i, count); });
  of_block.add_next(begin + whole, n - whole);
}

// weight is null if there is none.
template <typename M, typename W>
void adamw_block(const AdamWArgs& args, const AdamWFactors& factors, int64_t begin, int64_t n, W* weight,
                 BlockDigests* of_block) {
  const float* gradient = args.gradient.data<float>() + begin;
  float* master = args.master.data<float>() + begin;
  M* m_data = args.m.data<M>() + begin;
  float* v_data = args.v.data<float>() + begin;
  auto largest = hn::Zero(IntTag());
  const auto update = [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    auto m = load(m_data + i, count), v = load(v_data + i, count);
    const auto fall = update_moments(factors, load(gradient + i, count), m, v);
    const auto updated = updated_weight(factors, load(master + i, count), fall);
    store(m, m_data + i, count);
    store(v, v_data + i, count);
    store(updated, master + i, count);
    if (weight) store(updated, weight + i, count);
    keep_largest(updated, count, largest);
    keep_largest(m, count, largest);
    keep_largest(v, count, largest);
  };
  of_block == nullptr ? for_each_vector(n, update)
                      : update_digested(master, m_data, v_data, begin, n, *of_block, update);
  report_largest(largest, args.faults);
}

// begin is a multiple of 4.
template <typename W>
void round_block(const AdamWArgs& args, uint32_t update, int64_t begin, int64_t n, W* weight) {
  const float* master = args.master.data<float>() + begin;
  const int64_t lanes = float_lanes();
  HWY_ALIGN uint32_t words[4 * hn::MaxLanes(WordTag())];
  for (int64_t done = 0; done < n; done += 4 * lanes) {
    element_words(args.key, args.parameter, update, args.first_element + begin + done, words);
    for_each_vector(std::min(4 * lanes, n - done), [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      store_stochastically(load(master + done + i, count), hn::Load(WordTag(), words + i), weight + done + i, count);
    });
  }
}

// Writes only the weight, from the current masters.
template <typename W>
void write_block(const AdamWArgs& args, uint32_t update, int64_t begin, int64_t n, W* weight) {
  if constexpr (!std::is_same_v<W, float>) {
    if (args.rounding == WeightRounding::kStochastic) return round_block(args, update, begin, n, weight);
  }
  const float* master = args.master.data<float>() + begin;
  for_each_vector(
      n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA { store(load(master + i, count), weight + i, count); });
}

void adamw_kernel(const AdamWArgs& args, const UpdateControl& control, StateDigests* digests) {
  const bool updates = args.gradient.defined(), has_weight = args.weight.defined();
  const AdamWFactors factors(args, control);
  const bool one_pass = updates && args.rounding == WeightRounding::kNearest;
  dispatch(updates ? args.m.dtype() : DType::kF32, [&]<typename M>() {
    dispatch(has_weight ? args.weight.dtype() : DType::kF32, [&]<typename W>() {
      update_blocks(args, digests, [&](int64_t begin, int64_t count, BlockDigests* of_block) {
        W* weight = has_weight ? args.weight.data<W>() + begin : nullptr;
        if (updates) adamw_block<M, W>(args, factors, begin, count, one_pass ? weight : nullptr, of_block);
        if (has_weight && !one_pass) write_block<W>(args, control.update, begin, count, weight);
      });
    });
  });
}

// ---- State in fewer bits: weights without a master, second moments in bf16, moments in 8 bits. A block of
// kDynamicBlock elements is widened into buffers that stay in the nearest cache, updated there in fp32, and narrowed.
// So memory is read and written once, and no template is needed per combination of formats.

static_assert(kBlockElements % kDynamicBlock == 0, "threads divide an update between blocks");
static_assert(kDynamicBlock % kDigestTile == 0);

// Working copy of one block; 0 beyond its elements.
struct Buffers {
  HWY_ALIGN float m[kDynamicBlock], v[kDynamicBlock], w[kDynamicBlock], c[kDynamicBlock];
  HWY_ALIGN uint32_t words[kDynamicBlock];
  HWY_ALIGN uint8_t codes[kDynamicBlock];
};

// Elements [begin, begin + n) of the arguments, in one block.
struct Block {
  const AdamWArgs& args;
  int64_t begin, n;

  int64_t index() const { return begin / kDynamicBlock; }
  int64_t element() const { return args.first_element + begin; }
};

template <typename T>
void widen(const T* from, int64_t n, float* to) {
  for_each_vector(n, [&](int64_t i, int64_t count)
                         MANTISSA_VECTOR_LAMBDA { hn::StoreU(load(from + i, count), FloatTag(), to + i); });
}

template <typename T>
void narrow(const float* from, int64_t n, T* to) {
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA { store(load(from + i), to + i, count); });
}

void draw(const Block& block, uint64_t key, uint32_t update, uint32_t* words) {
  for (int64_t i = 0; i < block.n; i += 4 * float_lanes()) {
    element_words(key, block.args.parameter, update, block.element() + i, words + i);
  }
}

template <typename T>
void narrow_stochastically(const float* from, const uint32_t* words, int64_t n, T* to) {
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    store_stochastically(load(from + i), hn::LoadU(WordTag(), words + i), to + i, count);
  });
}

void read_moment(const Block& block, const Tensor& moment, const Tensor& absmax, DynamicMap map, uint8_t* codes,
                 float* to) {
  if (moment.dtype() != DType::kU8) {
    return dispatch(moment.dtype(), [&]<typename T>() { widen(moment.data<T>() + block.begin, block.n, to); });
  }
  std::memset(codes, 0, kDynamicBlock);
  std::memcpy(codes, moment.data<uint8_t>() + block.begin, static_cast<size_t>(block.n));
  decode_block(map, codes, absmax.data<float>()[block.index()], to);
}

void write_codes(const Block& block, const Tensor& moment, const Tensor& absmax, DynamicMap map, const float* from,
                 uint8_t* codes) {
  absmax.data<float>()[block.index()] = encode_block(map, from, codes);
  std::memcpy(moment.data<uint8_t>() + block.begin, codes, static_cast<size_t>(block.n));
}

// Updates b.m, b.v and, for weights without compensation, b.w.
void update(const Block& block, const AdamWFactors& factors, Buffers& b) {
  const float* gradient = block.args.gradient.data<float>() + block.begin;
  for_each_vector(block.n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    auto m = load(b.m + i), v = load(b.v + i);
    const auto fall = update_moments(factors, load(gradient + i, count), m, v);
    store(m, b.m + i);
    store(v, b.v + i);
    store(updated_weight(factors, load(b.w + i), fall), b.w + i);
  });
}

// update() with Kahan summation of the weights. Afterwards b.w holds bf16 values and b.c their rounding errors.
void update_compensated(const Block& block, const AdamWFactors& factors, Buffers& b) {
  const FloatTag df;
  const float* gradient = block.args.gradient.data<float>() + block.begin;
  const auto upper = hn::Set(WordTag(), 0xffff0000u);
  for_each_vector(block.n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    auto m = load(b.m + i), v = load(b.v + i);
    const auto w = load(b.w + i);
    const auto fall = update_moments(factors, load(gradient + i, count), m, v);
    const auto sum = hn::Add(hn::NegMulSub(hn::Set(df, factors.decay), w, fall), load(b.c + i));
    const auto rounded = hn::BitCast(df, hn::And(bf16_in_upper_half(hn::Add(w, sum)), upper));
    store(m, b.m + i);
    store(v, b.v + i);
    store(hn::Sub(sum, hn::Sub(rounded, w)), b.c + i);
    store(rounded, b.w + i);
  });
}

void report_faults(const Block& block, const Buffers& b) {
  auto largest = hn::Zero(IntTag());
  for_each_vector(block.n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    for (const float* state : {b.w, b.m, b.v}) keep_largest(load(state + i), count, largest);
  });
  report_largest(largest, block.args.faults);
}

void read_weights(const Block& block, Buffers& b) {
  const AdamWArgs& args = block.args;
  if (args.master.defined()) return widen(args.master.data<float>() + block.begin, block.n, b.w);
  widen(args.weight.data<BFloat16>() + block.begin, block.n, b.w);
  if (args.compensation.defined()) widen(args.compensation.data<BFloat16>() + block.begin, block.n, b.c);
}

void write_weights(const Block& block, uint32_t update, Buffers& b) {
  const AdamWArgs& args = block.args;
  if (args.master.defined()) narrow(b.w, block.n, args.master.data<float>() + block.begin);
  if (args.compensation.defined()) narrow(b.c, block.n, args.compensation.data<BFloat16>() + block.begin);
  if (!args.weight.defined()) return;
  dispatch(args.weight.dtype(), [&]<typename W>() {
    W* weight = args.weight.data<W>() + block.begin;
    if constexpr (!std::is_same_v<W, float>) {
      if (args.rounding == WeightRounding::kStochastic) {
        draw(block, args.key, update, b.words);
        return narrow_stochastically(b.w, b.words, block.n, weight);
      }
    }
    narrow(b.w, block.n, weight);
  });
}

void write_moments(const Block& block, uint32_t update, Buffers& b) {
  const AdamWArgs& args = block.args;
  if (args.m.dtype() == DType::kU8) {
    write_codes(block, args.m, args.m_absmax, DynamicMap::kSigned, b.m, b.codes);
  } else {
    dispatch(args.m.dtype(), [&]<typename M>() { narrow(b.m, block.n, args.m.data<M>() + block.begin); });
  }
  if (args.v.dtype() == DType::kU8) {
    write_codes(block, args.v, args.v_absmax, DynamicMap::kUnsigned, b.v, b.codes);
  } else if (args.v.dtype() == DType::kBF16) {
    draw(block, args.moment_key, update, b.words);
    narrow_stochastically(b.v, b.words, block.n, args.v.data<BFloat16>() + block.begin);
  } else {
    narrow(b.v, block.n, args.v.data<float>() + block.begin);
  }
}

void adamw_blocks_kernel(const AdamWArgs& args, const UpdateControl& control, StateDigests* digests) {
  const AdamWFactors factors(args, control);
  update_blocks(args, digests, [&](int64_t begin, int64_t count, BlockDigests* of_block) {
    Buffers b{};
    for (int64_t done = 0; done < count; done += kDynamicBlock) {
      const Block block{args, begin + done, std::min(kDynamicBlock, count - done)};
      if (block.n < kDynamicBlock) b = {};
      if (of_block != nullptr) of_block->add_read(block.begin, block.n);
      read_moment(block, args.m, args.m_absmax, DynamicMap::kSigned, b.codes, b.m);
      read_moment(block, args.v, args.v_absmax, DynamicMap::kUnsigned, b.codes, b.v);
      read_weights(block, b);
      args.compensation.defined() ? update_compensated(block, factors, b) : update(block, factors, b);
      report_faults(block, b);
      write_weights(block, control.update, b);
      write_moments(block, control.update, b);
      if (of_block != nullptr) of_block->add_next(block.begin, block.n);
    }
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(adamw_kernel);
HWY_EXPORT(adamw_blocks_kernel);

void run(const AdamWArgs& args) {
  check_args(args);
  const UpdateControl control = read_record<UpdateControl>(args.control);
  if (control.apply == 0) return;
  StateDigests digests;
  if (args.digests.defined()) digests = read_record<StateDigests>(args.digests);
  StateDigests* const wanted = args.digests.defined() ? &digests : nullptr;
  const auto run_kernel =
      args.is_wide() ? HWY_DYNAMIC_DISPATCH(adamw_kernel) : HWY_DYNAMIC_DISPATCH(adamw_blocks_kernel);
  run_kernel(args, control, wanted);
  if (wanted != nullptr) write_record(digests, args.digests);
}

void run(const SettleDigestsArgs& args) {
  const int64_t count = check_args(args);
  const UpdateControl control = read_record<UpdateControl>(args.control);
  if (control.apply == 0) return;
  constexpr auto kSize = static_cast<int64_t>(sizeof(StateDigests));
  for (int64_t i = 0; i < count; ++i) {
    const Tensor record = args.records.slice(i * kSize, kSize);
    StateDigests digests = read_record<StateDigests>(record);
    digests.settle(control.update);
    write_record(digests, record);
  }
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
