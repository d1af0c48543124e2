// Records of a TensorBoard event file: the figures of a step as bytes.
//
// A file is a row of records. A record is the length of its data (8 bytes), the masked CRC-32C of the length, the data,
// and their masked CRC-32C. The data are a message `Event` in the encoding of Protocol Buffers.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mantissa {

// CRC-32C (Castagnoli), as of iSCSI.
uint32_t crc32c(std::string_view bytes);

// The figures of one step. Tags and texts must be UTF-8.
class TensorboardEvent {
 public:
  enum class SessionEnd : uint8_t { kUnknown = 0, kSuccess = 1, kFailure = 2 };

  // `time`: seconds of Unix time.
  TensorboardEvent(double time, int64_t step) : time_(time), step_(step) {}

  // The first record of a file.
  static std::string file_version(double time);
  // Readers then drop what earlier files of the folder say of this step and of later ones.
  static std::string restart(double time, int64_t step);

  TensorboardEvent& scalar(std::string_view tag, double value);
  // TensorBoard shows it as Markdown.
  TensorboardEvent& text(std::string_view tag, std::string_view markdown);
  // counts[i] values lie in [least + i, least + i + 1).
  TensorboardEvent& histogram(std::string_view tag, int64_t least, std::span<const int64_t> counts);
  // For the tab of hyperparameters: the settings of a run by name, and the tags of the scalars by which runs are
  // compared. Settings that read as numbers or truth values are such.
  TensorboardEvent& session_start(const std::map<std::string, std::string>& settings,
                                  const std::vector<std::string>& metrics);
  TensorboardEvent& session_end(SessionEnd end);

  bool is_empty() const { return values_.empty(); }
  std::string record() const;

 private:
  TensorboardEvent& hparams(std::string_view tag, std::string_view content);

  double time_;
  int64_t step_;
  std::string values_;  // encoded
};

}  // namespace mantissa
