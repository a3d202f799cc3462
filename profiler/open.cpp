// SPDX-License-Identifier: Apache-2.0
#include "profiler/open.h"

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "profiler/schema_sql.h"

namespace stowage::profiler {
namespace {

constexpr std::int64_t kApplicationId = 0x73746f77;  // "stow", as schema.sql sets it
constexpr int kOldestSqlite = 3'037'000;             // STRICT tables

/// Entry v takes a file from version v to v + 1: the "=== version" sections of schema.sql.
std::vector<std::string> migrations() {
  constexpr std::string_view kMark = "\n-- === version ";
  const std::string_view schema = kSchemaSql;
  std::vector<std::string> sections;
  for (std::size_t begin = schema.find(kMark); begin != schema.npos;) {
    const std::size_t end = schema.find(kMark, begin + 1);
    sections.emplace_back(schema.substr(begin, end - begin));
    begin = end;
  }
  return sections;
}

[[noreturn]] void refuse(const std::string& path, std::string_view why) {
  throw StoreError(fmt::format("cannot open store '{}': {}", path, why));
}

bool is_file(const std::string& path) { return path != ":memory:" && !path.starts_with("file:"); }

/// The schema version of a file, 0 if it is empty. Refuses other programs' files and newer schemas. Within a
/// transaction.
std::int64_t read_version(const Database& database) {
  const std::int64_t application_id = database.integer("PRAGMA application_id");
  const std::int64_t version = database.integer("PRAGMA user_version");
  const std::int64_t newest = std::ssize(migrations());
  if (application_id != kApplicationId) {
    const bool empty =
        application_id == 0 && version == 0 && database.integer("SELECT count(*) FROM sqlite_schema") == 0;
    if (!empty) refuse(database.path(), "it is another program's SQLite file; choose another path");
    return 0;
  }
  if (version > newest) {
    refuse(database.path(), fmt::format("schema {}, this build reads {}; profile again into another file or use a "
                                        "newer stowage",
                                        version, newest));
  }
  return version;
}

std::int64_t read_version_alone(Database& database) {
  const Transaction transaction(database, Transaction::Kind::kRead);
  return read_version(database);
}

/// SQLite does not wait where two processes turn write-ahead logging on in a new file at once, so this does.
std::string set_write_ahead_log(const Database& database) {
  constexpr auto kPause = std::chrono::milliseconds(10);
  for (auto waited = std::chrono::milliseconds(0);; waited += kPause) {
    try {
      return database.text("PRAGMA journal_mode = WAL");
    } catch (const SqliteError& refusal) {
      if (refusal.code != SQLITE_BUSY || waited >= kBusyTimeout) throw;
    }
    std::this_thread::sleep_for(kPause);
  }
}

/// Turns write-ahead logging on; returns what to tell the user where it is refused.
std::string use_write_ahead_log(const Database& database) {
  std::string refusal;
  try {
    const std::string mode = set_write_ahead_log(database);
    if (mode == "wal" || mode == "memory") return "";
    refusal = fmt::format("its journal mode stays '{}'", mode);
  } catch (const SqliteError& error) {
    refusal = error.what();
  }
  return fmt::format("store '{}' keeps a rollback journal, so readers wait while a run is written: {}", database.path(),
                     refusal);
}

void migrate(Database& database) {
  Transaction transaction(database, Transaction::Kind::kWrite);
  const std::vector<std::string> sections = migrations();
  // Read again: another process may have migrated while this one waited.
  for (std::int64_t version = read_version(database); version < std::ssize(sections); ++version) {
    database.execute(sections[static_cast<std::size_t>(version)]);
  }
  transaction.commit();
}

Database open_for_writing(const std::string& path, std::string& note) {
  // SQLite would say of a folder that forbids new files only that the file is not there.
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (is_file(path) && !std::filesystem::exists(path, error) &&
      faccessat(AT_FDCWD, folder.c_str(), W_OK, AT_EACCESS) != 0) {
    refuse(path, fmt::format("folder '{}': {}; choose a store in a folder that you may write to", folder.string(),
                             system_text(errno)));
  }
  Database database(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
  if (database.read_only()) refuse(path, "the file is read-only; choose a store that you may write to");
  const std::int64_t version = read_version_alone(database);
  note = use_write_ahead_log(database);
  // A power cut may lose the last runs under NORMAL, but never damages a file with a write-ahead log.
  if (note.empty()) database.execute("PRAGMA synchronous = NORMAL");
  database.execute("PRAGMA foreign_keys = ON");
  if (version < std::ssize(migrations())) migrate(database);
  return database;
}

Database open_for_reading(const std::string& path) {
  std::error_code error;
  if (is_file(path) && !std::filesystem::exists(path, error) && !error) refuse(path, "no such file; check the path");
  Database database(path, SQLITE_OPEN_READONLY);
  std::int64_t version = 0;
  try {
    version = read_version_alone(database);
  } catch (const SqliteError& refusal) {
    // A reader of a file with a write-ahead log makes an index beside it. Where the folder forbids that and the log is
    // empty, nobody can be writing, and the file may be read as it lies.
    const bool log_is_empty = std::filesystem::file_size(path + "-wal", error) == 0 || error;
    const bool forbidden = refusal.code == SQLITE_CANTOPEN || refusal.code == SQLITE_READONLY;
    if (!forbidden || !log_is_empty) throw;
    database = Database(path, SQLITE_OPEN_READONLY, "immutable=1");
    version = read_version_alone(database);
  }
  if (version == 0) refuse(path, "it is empty; profile a run into it first");
  if (const std::int64_t newest = std::ssize(migrations()); version < newest) {
    refuse(path,
           fmt::format("schema {}, this build reads {}; open it for writing once, which migrates it", version, newest));
  }
  return database;
}

}  // namespace

Database open_store(const std::string& path, Store::Mode mode, std::string& note) {
  if (sqlite3_libversion_number() < kOldestSqlite) {
    refuse(path, fmt::format("SQLite {} is too old; use SQLite 3.37 or newer", sqlite3_libversion()));
  }
  return mode == Store::Mode::kReadOnly ? open_for_reading(path) : open_for_writing(path, note);
}

}  // namespace stowage::profiler
