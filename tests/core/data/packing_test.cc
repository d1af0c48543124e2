#include "core/data/batch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "core/base/check.h"
#include "core/data/data_source.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

constexpr int64_t kPackingContext = 32;

struct DocumentStarts {
  std::vector<int64_t> starts;
  int64_t end = 0;
};

// Lengths of 1 to `longest` tokens.
DocumentStarts random_documents(uint32_t count, int64_t longest, uint64_t seed) {
  DocumentStarts documents;
  for (uint32_t i = 0; i < count; ++i) {
    documents.starts.push_back(documents.end);
    documents.end += 1 + philox(seed, {i, 0, 0, 0})[0] % longest;
  }
  return documents;
}

TEST(PackedDocuments, EveryTokenButTheFirstIsATargetOnce) {
  for (const int64_t longest : {3, 20, 33, 34, 200}) {
    const DocumentStarts documents = random_documents(500, longest, 1);
    for (const SampleOrder order : {SampleOrder::kShuffled, SampleOrder::kSequential}) {
      const PackedDocuments packed(documents.starts, documents.end, kPackingContext, 7, order);
      std::vector<int> seen(static_cast<size_t>(documents.end));
      int64_t positions = 0;
      for (int64_t sequence = 0; sequence < packed.sequences(); ++sequence) {
        int64_t room = kPackingContext;
        ASSERT_FALSE(packed.pieces(sequence).empty());
        for (const PackedDocuments::Piece& piece : packed.pieces(sequence)) {
          room -= piece.positions;
          positions += piece.positions;
          for (int64_t i = 1; i <= piece.positions; ++i) ++seen[static_cast<size_t>(piece.begin + i)];
          const auto next = std::ranges::upper_bound(documents.starts, piece.begin);
          const int64_t end = next == documents.starts.end() ? documents.end : *next;
          ASSERT_LT(piece.begin + piece.positions, end) << "a piece is of one document";
        }
        ASSERT_GE(room, 0);
      }
      EXPECT_EQ(positions, packed.positions());
      for (size_t token = 0; token < seen.size(); ++token) {
        const bool is_first = std::ranges::binary_search(documents.starts, static_cast<int64_t>(token));
        ASSERT_EQ(seen[token], is_first ? 0 : 1) << "token " << token;
      }
    }
  }
}

// Against the definition: the first sequence with room, found by looking at all of them.
TEST(PackedDocuments, PutsEachPieceIntoTheFirstSequenceWithRoom) {
  const DocumentStarts documents = random_documents(400, 45, 3);
  const PackedDocuments packed(documents.starts, documents.end, kPackingContext, 7, SampleOrder::kSequential);
  std::vector<int64_t> room;
  std::vector<std::vector<int64_t>> expected;
  for (size_t i = 0; i < documents.starts.size(); ++i) {
    const int64_t end = i + 1 < documents.starts.size() ? documents.starts[i + 1] : documents.end;
    for (int64_t begin = documents.starts[i]; begin < end - 1; begin += kPackingContext) {
      const int64_t positions = std::min(kPackingContext, end - 1 - begin);
      const auto at =
          static_cast<size_t>(std::ranges::find_if(room, [&](int64_t r) { return r >= positions; }) - room.begin());
      if (at == room.size()) {
        room.push_back(kPackingContext);
        expected.emplace_back();
      }
      room[at] -= positions;
      expected[at].push_back(begin);
    }
  }
  ASSERT_EQ(packed.sequences(), std::ssize(expected));
  for (int64_t sequence = 0; sequence < packed.sequences(); ++sequence) {
    std::vector<int64_t> begins;
    for (const auto& piece : packed.pieces(sequence)) begins.push_back(piece.begin);
    EXPECT_EQ(begins, expected[static_cast<size_t>(sequence)]) << sequence;
  }
  const double padding = static_cast<double>(std::accumulate(room.begin(), room.end(), int64_t{0})) /
                         static_cast<double>(kPackingContext * packed.sequences());
  EXPECT_NEAR(packed.padding(), padding, 1e-12);
  EXPECT_LT(packed.padding(), 0.1);
}

TEST(PackedDocuments, TheSeedShufflesThem) {
  const DocumentStarts documents = random_documents(300, 20, 3);
  const auto begins = [&](uint64_t seed) {
    const PackedDocuments packed(documents.starts, documents.end, kPackingContext, seed, SampleOrder::kShuffled);
    std::vector<int64_t> all;
    for (int64_t s = 0; s < packed.sequences(); ++s) {
      for (const auto& piece : packed.pieces(s)) all.push_back(piece.begin);
    }
    return all;
  };
  EXPECT_EQ(begins(1), begins(1));
  EXPECT_NE(begins(1), begins(2));
  EXPECT_FALSE(std::ranges::is_sorted(begins(1)));
}

TEST(PackedDocuments, LeavesOutDocumentsOfOneToken) {
  const PackedDocuments none(std::vector<int64_t>{0, 1, 2}, 3, kPackingContext, 1, SampleOrder::kShuffled);
  EXPECT_EQ(none.sequences(), 0);
  EXPECT_EQ(none.padding(), 0.0);
  const PackedDocuments one(std::vector<int64_t>{5, 6, 8}, 9, kPackingContext, 1, SampleOrder::kShuffled);
  ASSERT_EQ(one.sequences(), 1);
  ASSERT_EQ(one.pieces(0).size(), 1u);
  EXPECT_EQ(one.pieces(0)[0].begin, 6);
  EXPECT_EQ(one.pieces(0)[0].positions, 1);
}

// --- blends

TEST(Blend, AfterEveryNumberOfSamplesEachSourceHasItsShareToWithinOne) {
  const std::vector<std::vector<double>> cases = {{1.0},
                                                  {1.0, 1.0},
                                                  {0.7, 0.3},
                                                  {0.7, 0.2, 0.1},
                                                  {1e-3, 1.0},
                                                  {3.0, 1.0, 1.0, 1.0, 1.0},
                                                  {0.5, 0.25, 0.125, 0.125},
                                                  {1.0 / 3.0, 2.0 / 3.0}};
  constexpr int64_t kSamples = 200'000;
  for (size_t one = 0; one < cases.size(); ++one) {
    const std::vector<double>& weights = cases[one];
    const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double k = static_cast<double>(weights.size());
    const double bound = weights.size() == 1 ? 0.0 : 1.0 - 1.0 / (2.0 * k - 2.0);
    const Blend blend(weights);
    const int64_t samples = one == 3 ? 1'000'000 : kSamples;
    std::vector<Blend::Place> places(static_cast<size_t>(samples));
    blend.find(0, places);
    std::vector<uint64_t> counts(weights.size());
    double worst = 0.0;
    for (size_t n = 0; n < places.size(); ++n) {
      ASSERT_EQ(places[n].index, counts[places[n].source]++);
      for (size_t source = 0; source < counts.size(); ++source) {
        const double share = weights[source] / sum * static_cast<double>(n + 1);
        worst = std::max(worst, std::abs(static_cast<double>(counts[source]) - share));
      }
    }
    EXPECT_LE(worst, bound + 1e-5) << one;
  }
}

TEST(Blend, AFurtherSampleIsTheSameWhereverOneBegins) {
  const Blend blend({0.6, 0.3, 0.1});
  std::vector<Blend::Place> all(100'000), part(100);
  blend.find(0, all);
  for (const size_t first : {70'000u, 16'384u, 16'383u, 5u, 99'900u}) {
    const Blend fresh({6, 3, 1});
    for (const Blend* const one : {&blend, &fresh}) {
      one->find(first, part);
      for (size_t i = 0; i < part.size(); ++i) {
        ASSERT_EQ(part[i].source, all[first + i].source);
        ASSERT_EQ(part[i].index, all[first + i].index);
      }
    }
  }
  EXPECT_NEAR(blend.share(1), 0.3, 1e-9);
  EXPECT_THROW(Blend({1.0, 0.0}), ContractError);
}

}  // namespace
}  // namespace mantissa
