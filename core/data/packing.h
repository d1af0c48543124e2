// Packing: documents laid side by side into sequences of `context` positions.
//
// A document of L tokens has L - 1 positions; the target of a position is the next token. A document with more
// positions than a sequence is cut into pieces that overlap by a token: every token but the first stays a target.
// Pieces go, in a random order, into the first sequence with enough room: first fit, whose number of sequences is at
// most 1.7 times the least possible (Dósa & Sgall 2013) and in practice within some per cent of it. The rest of a
// sequence is padding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mantissa {

// The order of documents in sequences, and of sequences in epochs.
enum class SampleOrder : uint8_t {
  kShuffled,    // by a keyed permutation
  kSequential,  // for validation: from the front
};

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
  int64_t positions() const { return positions_; }  // of all pieces; the others are padding
  // The share of padding in the sequences.
  double padding() const;
  // In the order of the sequence's positions.
  std::span<const Piece> pieces(int64_t sequence) const;

 private:
  const int64_t context_;
  int64_t positions_ = 0;
  std::vector<Piece> pieces_;         // by sequence
  std::vector<int64_t> first_piece_;  // of each sequence, and the number of pieces
};

}  // namespace mantissa
