// Digests of optimizer state that AdamW updates take.
#include <gtest/gtest.h>

#include "core/kernels/reduction/args.h"
#include "tests/core/kernels/optimizer/adamw_states.h"

namespace mantissa::kernel_test {
namespace {

std::vector<StateFormat> all_formats() {
  std::vector<StateFormat> formats = narrow_formats();
  formats.push_back({});
  formats.push_back({.m = DType::kBF16});
  return formats;
}

Digest digest_of_part(const Tensor& part) {
  if (!part.defined()) return {};
  const Tensor record = make_record(Digest());
  run(DigestArgs{.x = part, .record = record});
  return fetch_record<Digest>(record);
}

StateDigests digests_of_state(const AdamWArgs& args) {
  StateDigests digests;
  const auto parts = args.parts();
  for (int part = 0; part < StateDigests::kParts; ++part) {
    digests.written[part] = digest_of_part(*parts[static_cast<size_t>(part)]);
    if (parts[static_cast<size_t>(part)]->defined() && args.is_state(part)) digests.checked |= 1u << part;
  }
  return digests;
}

void settle(const AdamWArgs& args) { run(SettleDigestsArgs{.records = args.digests, .control = args.control}); }

// Sizes below and above a vector, a block, and a thread's piece.
TEST(AdamWDigests, AreThoseOfTheStateBeforeAndAfterAndChangeNoBit) {
  on_each_variant_and_placement([] {
    for (const StateFormat& format : all_formats()) {
      for (const int64_t n : {1, 259, 8200}) {
        AdamWArgs plain = make_state(n, format), args = make_state(n, format);
        const StateDigests before = digests_of_state(args);
        args.digests = make_record(StateDigests());
        run(plain);
        run(args);
        EXPECT_EQ(bytes_of(args), bytes_of(plain));
        const StateDigests after = digests_of_state(args), found = fetch_record<StateDigests>(args.digests);
        for (int part = 0; part < StateDigests::kParts; ++part) {
          const bool is_read = args.is_state(part);
          EXPECT_EQ(found.read[part], is_read ? before.written[part] : Digest()) << part << " of " << n;
          EXPECT_EQ(found.next[part], after.written[part]) << part << " of " << n;
          EXPECT_EQ(found.written[part], Digest());
        }
      }
    }
  });
}

TEST(AdamWDigests, TheSameInEverySchedule) {
  std::vector<Digest> first;
  device_under_test().on_each_schedule([&] {
    AdamWArgs args = make_state(device_under_test().large(70001), {});
    args.digests = make_record(StateDigests());
    run(args);
    const StateDigests found = fetch_record<StateDigests>(args.digests);
    const std::vector<Digest> all(found.next, found.next + StateDigests::kParts);
    if (first.empty()) first = all;
    EXPECT_EQ(all, first);
  });
}

TEST(AdamWDigests, AnUpdateThatIsNotAppliedLeavesThemAlone) {
  UpdateControl skip = kStateControl;
  skip.apply = 0;
  AdamWArgs args = make_state(300, {}, skip);
  const StateDigests before = digests_of_state(args);
  args.digests = make_record(before);
  run(args);
  settle(args);
  const StateDigests after = fetch_record<StateDigests>(args.digests);
  for (int part = 0; part < StateDigests::kParts; ++part) {
    EXPECT_EQ(after.written[part], before.written[part]);
    EXPECT_EQ(after.read[part], Digest());
  }
  EXPECT_EQ(after.bad_update, 0u);
}

void run_update(AdamWArgs& args, uint32_t number) {
  UpdateControl control = kStateControl;
  control.update = number;
  args.control = make_record(control);
  run(args);
  settle(args);
}

TEST(AdamWDigests, UpdatesOfUntouchedStateAgree) {
  for (const StateFormat& format : all_formats()) {
    AdamWArgs args = make_state(515, format);
    args.digests = make_record(digests_of_state(args));
    for (uint32_t update = 1; update < 4; ++update) run_update(args, update);
    EXPECT_EQ(fetch_record<StateDigests>(args.digests).bad_update, 0u);
  }
}

// A flip in each part between two updates: the second update reports the part, the tile and the bit. Later updates keep
// the report.
TEST(AdamWDigests, FindAFlipBetweenUpdates) {
  for (const StateFormat& format : all_formats()) {
    const AdamWArgs made = make_state(515, format);
    for (int part = 0; part < StateDigests::kParts; ++part) {
      if (!made.parts()[static_cast<size_t>(part)]->defined() || !made.is_state(part)) continue;
      AdamWArgs args = make_state(515, format);
      args.digests = make_record(digests_of_state(args));
      run(args);
      settle(args);
      const Tensor& tensor = *args.parts()[static_cast<size_t>(part)];
      const int64_t element = tensor.numel() - 1, size = size_bytes(tensor.dtype());
      std::vector<std::byte> bytes = bytes_of(tensor);
      bytes[static_cast<size_t>(element * size)] ^= std::byte{4};
      write_bytes(tensor, bytes.data());
      for (uint32_t update = 13; update < 15; ++update) run_update(args, update);
      const auto found = fetch_record<StateDigests>(args.digests);
      EXPECT_EQ(found.bad_update, 13u) << part;
      EXPECT_EQ(found.bad_part, part);
      const ChangedTile changed = changed_tile(found.bad_expected, found.bad_found, tensor.numel());
      EXPECT_EQ(changed.begin, element / kDigestTile * kDigestTile);
      EXPECT_EQ(changed.bit, 2);
    }
  }
}

}  // namespace
}  // namespace mantissa::kernel_test
