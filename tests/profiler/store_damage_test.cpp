// SPDX-License-Identifier: Apache-2.0
#include <fstream>
#include <random>

#include <gmock/gmock.h>
#include <unistd.h>

#include "profiler/store.h"
#include "tests/support/sample_run.h"

namespace stowage::profiler {
namespace {

constexpr auto kReadWrite = Store::Mode::kReadWrite;

class DamagedStore : public StoreFolder {
 protected:
  void write_sample() {
    Store store(path(), kReadWrite);
    store.write_plan(store.write_run(sample_run()), sample_plan());
  }

  std::string open_error(Store::Mode mode) {
    return store_error([&] { Store store(path(), mode); });
  }
};

/// While it lives, file permissions apply, even to a superuser's tests.
class AsOrdinaryUser {
 public:
  AsOrdinaryUser() { EXPECT_EQ(seteuid(user_ == 0 ? 65534 : user_), 0); }
  ~AsOrdinaryUser() { EXPECT_EQ(seteuid(user_), 0); }

 private:
  uid_t user_ = geteuid();
};

TEST_F(DamagedStore, MissingFile) {
  EXPECT_EQ(open_error(Store::Mode::kReadOnly), "cannot open store '" + path() + "': no such file; check the path");
}

TEST_F(DamagedStore, EmptyFileIsNoStoreYet) {
  std::ofstream(path()).flush();
  EXPECT_EQ(open_error(Store::Mode::kReadOnly),
            "cannot open store '" + path() + "': it is empty; profile a run into it first");
  EXPECT_EQ(Store(path(), kReadWrite).write_run(sample_run()), 1);
}

TEST_F(DamagedStore, AnotherKindOfFile) {
  std::ofstream(path()) << std::string(5'000, 'x');
  for (const Store::Mode mode : {Store::Mode::kReadOnly, kReadWrite}) {
    EXPECT_EQ(open_error(mode),
              "cannot open store '" + path() +
                  "': file is not a database in \"PRAGMA application_id\"; the file is damaged, cut short "
                  "or no store: move it away and profile again");
  }
}

TEST_F(DamagedStore, AnotherProgramsDatabaseIsLeftAlone) {
  tamper(path(), "CREATE TABLE runs (id INTEGER)");
  const auto size_bytes = std::filesystem::file_size(path());
  for (const Store::Mode mode : {Store::Mode::kReadOnly, kReadWrite}) {
    EXPECT_EQ(open_error(mode),
              "cannot open store '" + path() + "': it is another program's SQLite file; choose another path");
  }
  EXPECT_EQ(tamper(path(), "SELECT group_concat(sql) FROM sqlite_schema"), "CREATE TABLE runs (id INTEGER)");
  EXPECT_EQ(tamper(path(), "PRAGMA journal_mode"), "delete");
  EXPECT_EQ(std::filesystem::file_size(path()), size_bytes);
}

TEST_F(DamagedStore, TruncatedFile) {
  write_sample();
  std::filesystem::resize_file(path(), std::filesystem::file_size(path()) / 2);
  for (const Store::Mode mode : {Store::Mode::kReadOnly, kReadWrite}) {
    EXPECT_EQ(open_error(mode),
              "cannot open store '" + path() +
                  "': database disk image is malformed in \"PRAGMA application_id\"; the file is damaged, "
                  "cut short or no store: move it away and profile again");
  }
}

TEST_F(DamagedStore, FolderThatIsAFile) {
  std::ofstream(path("file")).flush();
  EXPECT_EQ(store_error([&] { Store store(path("file/run.db"), kReadWrite); }),
            "cannot open store '" + path("file/run.db") +
                "': not a directory; choose a store in a folder that you may write to");
}

TEST_F(DamagedStore, ReadOnlyFolder) {
  std::filesystem::permissions(folder_, std::filesystem::perms{0555});
  {
    const AsOrdinaryUser user;
    EXPECT_EQ(open_error(kReadWrite), "cannot open store '" + path() + "': folder '" + folder_.string() +
                                          "': permission denied; choose a store in a folder that you may write to");
  }
  std::filesystem::permissions(folder_, std::filesystem::perms{0755});
}

TEST_F(DamagedStore, ReadOnlyFile) {
  write_sample();
  std::filesystem::permissions(path(), std::filesystem::perms{0444});
  const AsOrdinaryUser user;
  EXPECT_EQ(open_error(kReadWrite),
            "cannot open store '" + path() + "': the file is read-only; choose a store that you may write to");
}

TEST_F(DamagedStore, AStoreInAReadOnlyFolderCanBeRead) {
  write_sample();
  std::filesystem::permissions(folder_, std::filesystem::perms{0555});
  {
    const AsOrdinaryUser user;
    EXPECT_EQ(Store(path()).read_run(1), sample_run());
  }
  std::filesystem::permissions(folder_, std::filesystem::perms{0755});
}

TEST_F(DamagedStore, KeepsARollbackJournalWhereWriteAheadLoggingIsRefused) {
  // This file system layer of SQLite, made for network mounts, has no shared memory.
  const std::string uri = "file:" + path() + "?vfs=unix-dotfile";
  Store store(uri, kReadWrite);
  EXPECT_EQ(store.note(),
            "store '" + uri +
                "' keeps a rollback journal, so readers wait while a run is written: its journal mode stays "
                "'delete'");
  EXPECT_EQ(store.read_run(store.write_run(sample_run())), sample_run());
}

/// Rows that contradict one another: what to do to the file, and what reading it must say.
struct Tampering {
  const char* sql;
  const char* what;
  const char* finding;
};

TEST_F(DamagedStore, RowsThatContradictOneAnother) {
  const Tampering cases[] = {
      {"UPDATE uses SET op = 99 WHERE use = 1", "run 1", "use 1 names op 99 of 4"},
      {"UPDATE uses SET tensor = -1 WHERE use = 1", "run 1", "use 1 names tensor -1 of 7"},
      {"UPDATE uses SET op = 4294967296 WHERE use = 1", "run 1", "op is out of range"},
      {"UPDATE uses SET kind = 'peek' WHERE use = 1", "run 1", "'peek' is none of 'read', 'write', 'result'"},
      {"UPDATE allocations SET free_op = 4 WHERE allocation = 0", "run 1", "allocation 0 names op 4 of 4"},
      {"UPDATE dependencies SET after_op = 3 WHERE dependency = 0", "run 1",
       "dependency 0 does not name an earlier op"},
      {"DELETE FROM ops WHERE op = 1", "run 1", "op 1 is missing"},
      {"DELETE FROM ops", "run 1", "use 0 names op 0 of 0"},
      {"DELETE FROM tensors WHERE tensor = 6", "run 1", "use 6 names tensor 6 of 6"},
      {"UPDATE plan_order SET op = 77 WHERE step = 1", "the plan of run 1", "step 1 names op 77 of 4"},
      {"DELETE FROM plan_order WHERE step = 3", "the plan of run 1", "the plan orders 3 of 4 ops"},
      {"UPDATE slots SET offset_bytes = 9223372036854775807", "the plan of run 1",
       "slot 0 is outside the arena of 1280 B"},
      {"UPDATE points SET tensor = 7 WHERE point = 2", "the plan of run 1", "point 2 names tensor 7 of 7"},
      {"UPDATE points SET of_tensor = 7 WHERE point = 2", "the plan of run 1", "point 2 names tensor 7 of 7"},
      {"UPDATE points SET of_tensor = NULL", "the plan of run 1", "point 2 takes a tensor's memory by half"},
      {"UPDATE reuses SET of_tensor = tensor", "run 1", "reuse 0 is of itself"},
      {"UPDATE kernels SET op = 4 WHERE kernel = 1", "run 1", "kernel 1 names op 4 of 4"},
      {"UPDATE copies SET kind = 'move'", "run 1",
       "'move' is none of 'host_to_device', 'device_to_host', 'device_to_device', 'peer_to_peer', 'other', 'set'"},
      {"UPDATE device_memory SET allocation = 7 WHERE change = 0", "run 1",
       "device memory change 0 names allocation 7 of 4"},
      {"UPDATE runs SET size_mismatches = 2", "run 1", "run 0 counts 2 of 1 unlike sizes"},
  };
  for (const Tampering& tampering : cases) {
    std::filesystem::remove(path());
    write_sample();
    tamper(path(), tampering.sql);
    const Store store(path());
    const std::string finding =
        std::string(tampering.finding) + "; the file is damaged: move it away and profile again";
    EXPECT_EQ(store_error([&] {
                store.read_run(1);
                store.read_plan(1);
              }),
              std::string("cannot read ") + tampering.what + " of store '" + path() + "': " + finding);
    EXPECT_EQ(store_error([&] { store.find_plan(sample_run().key); }),
              "cannot read a plan of store '" + path() + "': " + finding);
  }
}

TEST_F(DamagedStore, MissingTable) {
  write_sample();
  tamper(path(), "PRAGMA foreign_keys = OFF; DROP VIEW lifetimes; DROP TABLE uses");
  const Store store(path());
  EXPECT_EQ(store_error([&] { store.read_run(1); }),
            "cannot read store '" + path() +
                "': no such table: uses in \"SELECT op, tensor, kind, position FROM uses WHERE run_id = ? ORDER BY "
                "use\"; its tables are not those of its schema: move it away and profile again");
}

// Whatever bytes are wrong, reading throws or returns: no crash, no endless loop.
TEST_F(DamagedStore, AnyByteMayBeWrong) {
  write_sample();
  std::ifstream file(path(), std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(file), {}};
  const auto seed = static_cast<std::uint32_t>(testing::UnitTest::GetInstance()->random_seed() + 1);
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);

  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string bytes = whole;
    for (int flips = 0; flips < 20; ++flips) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (round % 10 == 0) bytes.resize(random() % bytes.size());
    std::ofstream(path("damaged.db"), std::ios::binary) << bytes;
    const std::string error = store_error([&] {
      const Store store(path("damaged.db"));
      store.read_run(1);
      store.read_plan(1);
      store.find_plan(sample_run().key);
    });
    refused += error.starts_with("cannot ");
    EXPECT_THAT(error, testing::Not(testing::HasSubstr("\n")));
  }
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace stowage::profiler
