// Database: an SQLite file, and statements on it. Errors are DataError; they name the file and give SQLite's reason.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

struct sqlite3;
struct sqlite3_stmt;

namespace mantissa {

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

}  // namespace mantissa
