// CheckpointFile: one file of a checkpoint, hashed while it is written and on disk when close() returns.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/io/byte_sink.h"

namespace mantissa {

struct CheckpointFile {
  std::string name;  // without folders
  uint64_t size_bytes = 0;
  std::string xxh3_128;  // 32 hexadecimal digits
};

class CheckpointFileWriter final : public ByteSink {
 public:
  // Creates folder/name. This and every write throws CheckpointError with the system's reason (no space, file too
  // large, short write); a program that sets RLIMIT_FSIZE must ignore SIGXFSZ to get as far.
  CheckpointFileWriter(const std::string& folder, const std::string& name);
  ~CheckpointFileWriter() override;
  CheckpointFileWriter(const CheckpointFileWriter&) = delete;
  CheckpointFileWriter& operator=(const CheckpointFileWriter&) = delete;

  void write(std::span<const std::byte> bytes) override;
  // Flushes to the disk and gives the record for the manifest.
  CheckpointFile close();

 private:
  struct Hash;
  [[noreturn]] void fail(const char* operation, int error) const;

  std::string path_;
  CheckpointFile file_;
  std::unique_ptr<Hash> hash_;
  int descriptor_ = -1;
};

// XXH3-128 of bytes in memory, as 32 hexadecimal digits.
std::string xxh3_128_hex(std::span<const std::byte> bytes);

}  // namespace mantissa
