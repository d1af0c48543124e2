// Batches: which windows of the data are the samples of a run, and their tokens and targets as models read them.
//
// A sample is a function of (seed, sample number) only, so that any number of ranks reads the same batches and a
// resumed run continues exactly: the data cursor is one number. The data is cut into windows of context + 1 tokens that
// start every `context` tokens, so each token is predicted once an epoch. Each epoch visits all windows once, in its
// own order, shifted by its own few tokens as far as there is room. Packed documents replace windows where kept apart.
#pragma once

#include "core/data/token_data.h"

namespace mantissa {

// The order of documents in sequences, and of sequences in epochs.
enum class SampleOrder : uint8_t {
  kShuffled,    // by a keyed permutation
  kSequential,  // for validation: from the front
};

// Documents laid side by side into sequences of `context` positions.
//
// A document of L tokens has L - 1 positions; the target of a position is the next token. A document with more
// positions than a sequence is cut into pieces that overlap by a token: every token but the first stays a target.
// Pieces go, in a random order, into the first sequence with enough room: first fit, whose number of sequences is at
// most 1.7 times the least possible (Dósa & Sgall 2013) and in practice some per cent more. The rest is padding.
class PackedDocuments {
 public:
  struct Piece {
    int64_t begin = 0;      // first token; the targets start one token later
    int64_t positions = 0;  // at least 1
  };

  // `documents`: first token of each, ascending; the last ends at `end`. A function of these arguments alone. Documents
  // of one token have no position and are left out.
  PackedDocuments(std::span<const int64_t> documents, int64_t end, int64_t context, uint64_t seed, SampleOrder order);

  int64_t sequences() const { return static_cast<int64_t>(first_piece_.size()) - 1; }
  int64_t positions() const { return positions_; }        // of all pieces; the others are padding
  double padding() const;                                 // the share of padding in the sequences
  std::span<const Piece> pieces(int64_t sequence) const;  // in the order of the sequence's positions

 private:
  const int64_t context_;
  int64_t positions_ = 0;
  std::vector<Piece> pieces_;         // by sequence
  std::vector<int64_t> first_piece_;  // of each sequence, and the number of pieces
};

// The order in which a run visits each of `items` once an epoch. item(n): the n-th visited item.
class EpochOrder {
 public:
  EpochOrder(int64_t items, uint64_t seed, SampleOrder order);

  int64_t items() const { return static_cast<int64_t>(items_); }
  int64_t item(uint64_t sample) const;

 private:
  uint64_t items_, key_;
  SampleOrder order_;
};

class Sampler {
 public:
  // DataError naming `what` if the tokens do not fill one window.
  Sampler(int64_t tokens, int64_t context, uint64_t seed, SampleOrder order, const char* what);

  int64_t windows() const { return order_.items(); }
  // Index of the first token of sample number `sample` = step * global_batch + index in the global batch.
  int64_t window_begin(uint64_t sample) const;

 private:
  EpochOrder order_;
  int64_t context_, slack_;
  uint64_t key_;
  bool is_shifted_;
};

// A keyed permutation of [0, size): returns the place of element `index`. A Feistel network with a Philox round
// function over the next even number of bits, followed along its cycle into [0, size) (Black & Rogaway 2002).
uint64_t permute(uint64_t index, uint64_t size, uint64_t key, uint64_t epoch);

inline constexpr int32_t kIgnoredTarget = -100;

// Samples [first_sample, first_sample + n) of the range, where n = tokens.size() / context. tokens, targets (n,
// context): the target of a position is the next token, or ignored if the next token does not count.
void fill_next_token_batch(const TokenRange& range, const Sampler& sampler, uint64_t first_sample, int64_t context,
                           std::span<int32_t> tokens, std::span<int32_t> targets);

// Sequences as models read them, (n, context) each.
struct SequenceSpans {
  std::span<int32_t> tokens, targets;
  std::span<int32_t> starts{};  // see core/kernels/documents.h; empty where documents are joined
};

// The same for packed sequences. Padding is a document of its own, with ignored targets.
void fill_packed_batch(const TokenRange& range, const PackedDocuments& packed, const EpochOrder& order,
                       uint64_t first_sample, int64_t context, const SequenceSpans& out);

struct MaskingOptions {
  double fraction = 0.15;  // of the positions that are predicted
  int32_t mask_token = 0;
  int32_t vocab = 256;  // of the random replacements: [0, vocab)
  uint64_t seed = 0;
};

// The same windows for bidirectional models. A random choice of positions is predicted; all others are ignored. 80 % of
// the chosen ones show the mask token, 10 % a random token, 10 % themselves (Devlin et al. 2019). The choice depends on
// (seed, sample, position) only; a sample has at least one predicted position.
void fill_masked_batch(const TokenRange& range, const Sampler& sampler, uint64_t first_sample, int64_t context,
                       const MaskingOptions& options, std::span<int32_t> tokens, std::span<int32_t> targets);

}  // namespace mantissa
