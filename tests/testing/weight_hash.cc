#include "tests/testing/weight_hash.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <vector>

namespace mantissa {

uint64_t hash_weights(const ParameterSet& parameters, Backend& backend, Stream& stream) {
  constexpr int64_t kChunkElements = int64_t{1} << 18;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(), &XXH3_freeState);
  MANTISSA_CHECK(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK,
                 "[hash_weights] no memory for the hash state");
  std::vector<std::byte> host;
  for (int index = 0; index < parameters.size(); ++index) {
    if (parameters[index].await_weight) parameters[index].await_weight();
    const Tensor& weight = parameters[index].weight;
    for (int64_t begin = 0; begin < weight.numel(); begin += kChunkElements) {
      const Tensor chunk = weight.slice(begin, std::min(kChunkElements, weight.numel() - begin));
      host.resize(chunk.size_bytes());
      backend.download(chunk, host.data(), stream);
      XXH3_64bits_update(state.get(), host.data(), host.size());
    }
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace mantissa
