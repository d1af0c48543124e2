#include "tools/probe/probe_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <bit>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "tests/core/io/file_size_limit.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

using testing::FileSizeLimit;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TempFolder;
using Mode = Database::Mode;
using Bytes = std::vector<std::byte>;

Database table_in(const std::string& path) {
  Database database(path, Mode::kWrite);
  database.run("CREATE TABLE IF NOT EXISTS t (number INTEGER, value)");
  return database;
}

void insert(const Database& database, int64_t number, const DatabaseValue& value) {
  auto statement = database.prepare("INSERT INTO t VALUES (?, ?)");
  statement.bind({number, value});
  EXPECT_FALSE(statement.step());
}

std::vector<DatabaseValue> values_in(const Database& database) {
  std::vector<DatabaseValue> values;
  auto query = database.prepare("SELECT value FROM t ORDER BY number");
  while (query.step()) values.push_back(query.at(0));
  return values;
}

TEST(Database, IsNotWrittenThroughALink) {
  const TempFolder folder;
  table_in(folder.file("target"));
  std::filesystem::create_symlink(folder.file("target"), folder.file("link"));
  EXPECT_THAT(message_of<DataError>([&] { table_in(folder.file("link")); }), HasSubstr("it is a symbolic link"));
  std::filesystem::create_hard_link(folder.file("target"), folder.file("name"));
  EXPECT_THAT(message_of<DataError>([&] { table_in(folder.file("name")); }), HasSubstr("it has a second name"));
  EXPECT_TRUE(values_in(Database(folder.file("name"), Mode::kRead)).empty());
}

TEST(Database, KeepsEveryBitOfEveryType) {
  const TempFolder folder;
  const std::vector<DatabaseValue> expected = {
      std::monostate(),
      std::numeric_limits<int64_t>::min(),
      int64_t{-1},
      0.1,
      -0.0,
      static_cast<double>(std::numeric_limits<float>::denorm_min()),
      std::numeric_limits<double>::infinity(),
      std::string("blocks.0.mlp.up"),
      std::string("größer, \"more\"\n"),
      std::string(),
      Bytes{std::byte{0}},
      Bytes(100'000, std::byte{0xa5}),
  };
  const Database database = table_in(folder.file("a.db"));
  for (size_t i = 0; i < expected.size(); ++i) insert(database, static_cast<int64_t>(i), expected[i]);
  EXPECT_EQ(values_in(database), expected);
  EXPECT_EQ(values_in(Database(folder.file("a.db"), Mode::kRead)), expected);
}

TEST(Database, StoresNanAsNull) {
  const TempFolder folder;
  const Database database = table_in(folder.file("a.db"));
  insert(database, 1, std::nan(""));
  EXPECT_EQ(values_in(database), std::vector<DatabaseValue>{std::monostate()});
}

TEST(Database, NamesTheColumnsOfAQuery) {
  const TempFolder folder;
  const Database database = table_in(folder.file("a.db"));
  EXPECT_EQ(database.prepare("SELECT number, 2 * number AS twice FROM t").columns(),
            (std::vector<std::string>{"number", "twice"}));
  EXPECT_EQ(database.value("SELECT count(*) FROM t"), DatabaseValue(int64_t{0}));
}

TEST(Database, ErrorsNameTheFileAndTheReason) {
  const TempFolder folder;
  const std::string path = folder.file("a.db");
  const Database database = table_in(path);
  EXPECT_THAT(message_of<DataError>([&] { database.prepare("SELEC 1"); }),
              HasSubstr(path + ": near \"SELEC\": syntax"));
  EXPECT_THAT(message_of<DataError>([&] { database.run("DROP TABLE u"); }), HasSubstr("no such table: u"));
  EXPECT_THAT(message_of<DataError>([&] { database.prepare("SELECT 1; SELECT 2"); }),
              HasSubstr("expected one SQL statement, got 'SELECT 1; SELECT 2'"));
  EXPECT_THAT(message_of<DataError>([&] { database.prepare(" "); }), HasSubstr("expected one SQL statement"));
  EXPECT_NO_THROW(database.prepare("SELECT 1; \n"));
  const std::string missing = folder.file("none.db");
  EXPECT_THAT(message_of<DataError>([&] { Database(missing, Mode::kRead); }),
              HasSubstr(missing + ": unable to open database file"));
  const Database text(folder.write("text.db", std::string(4096, 'x')), Mode::kRead);
  EXPECT_THAT(message_of<DataError>([&] { text.value("PRAGMA user_version"); }), HasSubstr("file is not a database"));
}

TEST(Database, AReaderCannotWrite) {
  const TempFolder folder;
  { table_in(folder.file("a.db")); }
  const Database reader(folder.file("a.db"), Mode::kRead);
  EXPECT_THAT(message_of<DataError>([&] { reader.run("INSERT INTO t VALUES (1, 1)"); }),
              HasSubstr("readonly database"));
}

TEST(Database, CanBeReadWhileItIsWritten) {
  const TempFolder folder;
  const Database writer = table_in(folder.file("a.db"));
  writer.run("PRAGMA journal_mode = WAL");
  const Database reader(folder.file("a.db"), Mode::kRead);
  for (int64_t count = 1; count <= 3; ++count) {
    writer.run("BEGIN");
    insert(writer, count, count);
    EXPECT_EQ(values_in(reader).size(), static_cast<size_t>(count - 1)) << "within a transaction";
    writer.run("COMMIT");
    EXPECT_EQ(values_in(reader).size(), static_cast<size_t>(count));
  }
}

// Killing a process within a transaction leaves the file as it was before.
TEST(Database, AKilledWriterLeavesWholeTransactions) {
  for (const char* const mode : {"WAL", "DELETE"}) {
    const TempFolder folder;
    const std::string path = folder.file("a.db");
    const pid_t child = ::fork();
    if (child == 0) {
      const Database writer = table_in(path);
      writer.run(std::string("PRAGMA cache_spill = 1; PRAGMA journal_mode = ") + mode);
      insert(writer, 1, int64_t{1});
      writer.run("BEGIN");
      for (int64_t i = 2; i < 100; ++i) insert(writer, i, Bytes(10'000, std::byte{1}));
      ::raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    if (std::string(mode) == "WAL") {
      EXPECT_EQ(values_in(Database(path, Mode::kRead)).size(), 1u);
    }
    const Database again = table_in(path);
    EXPECT_EQ(values_in(again), std::vector<DatabaseValue>{int64_t{1}}) << mode;
    insert(again, 2, int64_t{2});
    EXPECT_EQ(values_in(again).size(), 2u);
  }
}

TEST(Database, KeepsNoPartOfATransactionThatCouldNotBeWritten) {
  const TempFolder folder;
  const Database writer = table_in(folder.file("a.db"));
  insert(writer, 1, int64_t{1});
  {
    const FileSizeLimit limit(20'000);
    writer.run("BEGIN");
    insert(writer, 2, int64_t{2});
    EXPECT_THROW(
        {
          insert(writer, 3, Bytes(100'000, std::byte{1}));
          writer.run("COMMIT");
        },
        DataError);
  }
  EXPECT_EQ(values_in(Database(folder.file("a.db"), Mode::kRead)), std::vector<DatabaseValue>{int64_t{1}});
}

}  // namespace
}  // namespace mantissa
