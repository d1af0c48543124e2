// ProbeLog: the file of a run's probes, an SQLite database with the table `probes`: a row for each tensor or product of
// a probed step. Any SQL client can read it, also while the run goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "tools/probe/probe_row.h"

struct sqlite3;
struct sqlite3_stmt;

namespace mantissa {

// ---- Database: an SQLite file, and statements on it. Errors are DataError; they name the file and give SQLite's
// reason.

// NULL, an integer, a real number, a text or bytes. SQLite stores NaN as NULL.
using DatabaseValue = std::variant<std::monostate, int64_t, double, std::string, std::vector<std::byte>>;

class Database {
 public:
  enum class Mode : uint8_t {
    kRead,   // writes nothing; works while another process writes
    kWrite,  // creates the file if it does not exist
  };
  Database(const std::string& path, Mode mode);

  // A statement; its rows are read one at a time.
  class Statement {
   public:
    // Sets parameters ?1, ?2, ... and begins again.
    void bind(const std::vector<DatabaseValue>& values);
    // Moves to the next row; false if there is none.
    bool step();
    std::vector<std::string> columns() const;
    // Whether it has columns and writes nothing.
    bool is_query() const;
    DatabaseValue at(int column) const;  // of the present row

   private:
    friend class Database;
    Statement(const Database& database, std::string_view sql);

    const Database& database_;
    std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement_;
  };

  // `sql`: exactly one statement. The database must outlive the result and stay where it is.
  Statement prepare(std::string_view sql) const { return Statement(*this, sql); }
  // Runs statements without parameters and ignores their rows.
  void run(const std::string& sql) const;
  // The single value that a query returns.
  DatabaseValue value(std::string_view sql) const;

  const std::string& path() const { return path_; }

 private:
  [[noreturn]] void fail() const;

  std::string path_;
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> connection_;
};

struct ProbeColumn {
  const char* name;
  const char* type;  // in SQL
};
// NULL where a row has no such figure.
inline constexpr ProbeColumn kProbeColumns[] = {
    {"step", "INTEGER"},  // counted from 1, as in log lines
    {"role", "TEXT"},     // role, tensor, format: see ProbeRow
    {"tensor", "TEXT"},
    {"format", "TEXT"},
    {"scale", "REAL"},        // of the format
    {"loss_scale", "REAL"},   // of this step; gradients are multiplied by it, and by a factor for their exchange
    {"elements", "INTEGER"},  // from here to non_finite: FormatLosses of the format in use
    {"zeros", "INTEGER"},
    {"underflowed", "INTEGER"},
    {"subnormal", "INTEGER"},
    {"overflowed", "INTEGER"},
    {"non_finite", "INTEGER"},
    {"amax", "REAL"},       // the largest magnitude
    {"drift", "REAL"},      // log2 of its ratio to that of the previous probed step, without loss scales
    {"histogram", "BLOB"},  // bytes, see encode_histogram()
    {"snr_db", "REAL"},     // snr_db, cosine: of a product against fp32, or of a sum over the ranks
    {"cosine", "REAL"},
    {"noise_ratio", "REAL"},  // of a weight gradient: squared rounding error / squared noise from the choice of samples
    {"stagnant_fp32", "INTEGER"},  // updates below half an ulp of the weight in that format
    {"stagnant_bf16", "INTEGER"},
    {"stagnant_fp16", "INTEGER"}};

// The rows of one probed step, of all ranks.
struct ProbedStep {
  int64_t step = 0;  // from 0
  float loss_scale = 1.0f;
  bool applied = true;   // else some gradients were not finite
  double seconds = 0.0;  // time for reading and exchanging the rows, on this rank
  std::vector<ProbeRow> rows;
};

class ProbeLog {
 public:
  // Continues the file of a run that has done `steps`, also 0 after a rollback: rows of later steps are removed.
  // Nothing: a run begins. The file of another run, and a damaged one, are kept as PATH.previous, or as the first of
  // PATH.previous.2, PATH.previous.3, ... that does not exist yet. DataError if the file cannot be written.
  ProbeLog(const std::string& path, std::optional<int64_t> steps);
  ~ProbeLog();
  ProbeLog(const ProbeLog&) = delete;
  ProbeLog& operator=(const ProbeLog&) = delete;

  // Writes all rows or none: a killed run leaves whole steps. After an error the log takes no more rows.
  void append(const ProbedStep& step);

 private:
  std::string path_;
  uintmax_t bytes_ = 0;  // of the file after the last step
  std::unique_ptr<Database> database_;
  std::optional<Database::Statement> insert_;
  std::map<std::pair<std::string, std::string>, double> amaxes_;  // of the previous probed step, by role and tensor
};

// Opens a probe file for reading. DataError if it is none, or of another version.
Database open_probes(const std::string& path);

// 10 log10 of the ratio of squares; cosines; rounding error over the noise of the batch. NaN if a row has none.
double snr_db(const ProbeRow& row);
double cosine_of(const ProbeRow& row);
double noise_ratio(const ProbeRow& row);
double amax_of(const ProbeRow& row);
// Share of the nonzero gradients of linear layers' outputs, dy, that become 0 when the layers round them, over all
// layers. NaN if there are none, or if a gradient is Inf or NaN.
double underflow_share(const ProbedStep& step);
// Whether such tensors are gradients of the scaled loss.
bool has_loss_scale(const std::string& role);

}  // namespace mantissa
