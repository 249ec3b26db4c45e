// The store on a real PostgreSQL server: transactions, the lead, failures of the server.
#include "coordinator/store/postgres_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "coordinator/service/backup.h"
#include "coordinator/store/keys.h"
#include "coordinator/store/leader_row.h"
#include "coordinator/store/sqlite_store.h"
#include "proto/cadre/v1/records.pb.h"
#include "tests/base/expect.h"
#include "tests/base/temporary_folder.h"
#include "tests/coordinator/store/postgres_server.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using testing::PostgresServer;

Store::Op Put(const std::string& key, const std::string& value) {
  return {Store::Op::Kind::kPut, key, value};
}
Store::Op Erase(const std::string& key) { return {Store::Op::Kind::kErase, key, ""}; }
Store::Op EraseBelow(const std::string& prefix) {
  return {Store::Op::Kind::kErasePrefix, prefix, ""};
}

// The store is opened once, and the row has limits for a leader that must notice early that it is
// late; a busy host may exceed them.
constexpr absl::Duration kPatience = absl::Minutes(1);
template <typename Call>
auto Patiently(Call call) {
  const absl::Time until = absl::Now() + kPatience;
  auto result = call();
  while (absl::IsUnavailable(StatusOf(result)) && absl::Now() < until) result = call();
  return result;
}
Leader ReadPatiently(LeaderRow& row) {
  const auto leader = Patiently([&] { return row.Read(); });
  EXPECT_THAT(leader, IsOk());
  return leader.value_or(Leader());
}

class PostgresStoreTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (PostgresServer::IsInstalled()) server_ = std::make_unique<PostgresServer>();
  }
  static void TearDownTestSuite() { server_.reset(); }
  void SetUp() override {
    if (server_ == nullptr) GTEST_SKIP() << "PostgreSQL 15 is not installed";
    server_->Psql("DROP TABLE IF EXISTS cadre_record, cadre_leader");
  }

  static absl::StatusOr<std::unique_ptr<PostgresStore>> Open(const std::string& instance = "one") {
    return Patiently([&] {
      return PostgresStore::Open({.url = server_->Url(),
                                  .instance = instance,
                                  .address = instance + ":7000",
                                  // The server may need long to start on a busy host.
                                  .patience = absl::Minutes(1)});
    });
  }
  // What a standby does that has read the row.
  static void Replace(PostgresStore& store, uint64_t term) {
    LeaderRow row(server_->Url(), "reader");
    store.Replace(term, ReadPatiently(row).beat);
  }
  // Opens the store and takes the lead after this term.
  static std::unique_ptr<PostgresStore> Lead(const std::string& instance, uint64_t after) {
    auto store = Open(instance);
    EXPECT_THAT(store, IsOk());
    Replace(**store, after);
    const auto term = (*store)->BeginEpoch(after, absl::Now());
    EXPECT_THAT(term, IsOk());
    EXPECT_EQ(*term, after + 1);
    return *std::move(store);
  }

  static std::unique_ptr<PostgresServer> server_;
};

std::unique_ptr<PostgresServer> PostgresStoreTest::server_;

TEST_F(PostgresStoreTest, KeepsRecords) {
  {
    const auto store = Lead("one", 0);
    const std::string bytes("\0\xff'\\\n", 5);
    EXPECT_THAT(store->Commit({Put("run/1", "a"), Put("run/2", bytes), Put("meta", "")}), IsOk());
    EXPECT_EQ(store->Get("run/2").value(), bytes);
    EXPECT_EQ(store->Get("meta").value(), "");
    EXPECT_EQ(store->Get("run").value(), std::nullopt);
    EXPECT_THAT(store->Commit({}), IsOk());
  }
  const auto again = Open("two");
  ASSERT_THAT(again, IsOk());
  EXPECT_THAT((*again)->Scan("run/").value(),
              ElementsAre(Pair("run/1", "a"), Pair("run/2", ::testing::_)));
  EXPECT_THAT((*again)->Scan("x").value(), IsEmpty());
}

TEST_F(PostgresStoreTest, OperationsOfATransactionAreInOrder) {
  const auto store = Lead("one", 0);
  EXPECT_THAT(store->Commit({Put("a/1", "1"), Put("a/2", "2"), Put("a/20", "20"), Put("b", "b")}),
              IsOk());
  EXPECT_THAT(store->Commit({EraseBelow("a/"), Put("a/3", "3"), Put("a/4", "4"), Erase("a/4")}),
              IsOk());
  EXPECT_THAT(store->Scan("a/").value(), ElementsAre(Pair("a/3", "3")));
  EXPECT_THAT(store->Commit({Put("a/2", "2"), Put("a/20", "20")}), IsOk());
  EXPECT_THAT(store->Commit({Erase("a/2"), Put("b", "first"), Erase("b"), Put("b", "new")}),
              IsOk());
  EXPECT_THAT(store->Scan("a/").value(), ElementsAre(Pair("a/20", "20"), Pair("a/3", "3")));
  EXPECT_EQ(store->Get("b").value(), "new");
}

// A coordinator that was paused, and returns.
TEST_F(PostgresStoreTest, ReplacedLeaderCommitsNothing) {
  const auto old = Lead("old", 0);
  EXPECT_THAT(old->Commit({Put("key", "old")}), IsOk());
  const auto current = Lead("new", 1);
  EXPECT_THAT(old->Commit({Put("key", "late"), EraseBelow("k")}),
              IsError(absl::StatusCode::kAborted,
                      "the coordinator at new:7000 leads since term 2; this one, of term 1"));
  EXPECT_EQ(current->Get("key").value(), "old");
  EXPECT_THAT(current->Commit({Put("key", "new")}), IsOk());
}

TEST_F(PostgresStoreTest, OneOfTwoStandbysTakesTheLead) {
  const auto leader = Lead("leader", 0);
  const auto first = Open("first");
  const auto second = Open("second");
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  Replace(**first, 1);
  Replace(**second, 1);
  EXPECT_EQ((*first)->BeginEpoch(0, absl::Now()).value(), 2u);
  EXPECT_THAT((*second)->BeginEpoch(0, absl::Now()),
              IsError(absl::StatusCode::kAborted, "another coordinator has taken the lead"));
}

// A standby that was paused after it had read the row.
TEST_F(PostgresStoreTest, LeaderThatBeatsIsNotReplaced) {
  const auto leader = Lead("leader", 0);
  const auto standby = Open("standby");
  ASSERT_THAT(standby, IsOk());
  Replace(**standby, 1);
  LeaderRow row(server_->Url(), "leader");
  EXPECT_THAT(Patiently([&] { return row.Beat(); }), IsOk());
  EXPECT_THAT((*standby)->BeginEpoch(0, absl::Now()),
              IsError(absl::StatusCode::kAborted, "the coordinator of term 1 leads on"));
  EXPECT_EQ(leader->BeginEpoch(0, absl::Now()).value(), 2u) << "the leader may begin a term";
}

// The statement that took the lead was carried out, but its answer was lost.
TEST_F(PostgresStoreTest, LeadThatWasTakenIsAdopted) {
  const auto store = Open("one");
  ASSERT_THAT(store, IsOk());
  Replace(**store, 0);
  server_->Psql("UPDATE cadre_leader SET term = 8, sequence = 0, instance = 'one'");
  EXPECT_EQ((*store)->BeginEpoch(7, absl::Now()).value(), 8u);
  EXPECT_THAT((*store)->Commit({Put("key", "1")}), IsOk());
  Replace(**store, 0);
  EXPECT_THAT((*store)->BeginEpoch(7, absl::Now()), IsError(absl::StatusCode::kAborted, "term 0"))
      << "a term with transactions is not begun again";
}

// Statements that wait for a lock end on the server as well.
TEST_F(PostgresStoreTest, ServerEndsStatementsThatWaitForALock) {
  const auto store = Lead("one", 0);
  auto locker = PostgresConnection::Connect(server_->Url(), kPatience);
  auto waiter = PostgresConnection::Connect(server_->Url(), kPatience);
  ASSERT_THAT(locker, IsOk());
  ASSERT_THAT(waiter, IsOk());
  ASSERT_THAT((*locker)->RunAll({"lock", "BEGIN; LOCK TABLE cadre_leader"}, kPatience), IsOk());
  EXPECT_THAT((*waiter)->Run({"wait", "SELECT address FROM cadre_leader"}, {}, absl::Seconds(1)),
              IsError(absl::StatusCode::kUnavailable, "database cadre"));
  const absl::Time until = absl::Now() + kPatience;
  const auto waiting = [] {
    return server_->Psql("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'");
  };
  while (waiting() != "0" && absl::Now() < until) absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(waiting(), "0");
}

// The first host accepts connections and does not answer; the second one is the server.
TEST_F(PostgresStoreTest, HostThatHangsLeavesTimeForTheNext) {
  const int hanging = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(hanging, any, size), 0);
  ASSERT_EQ(listen(hanging, 8), 0);
  ASSERT_EQ(getsockname(hanging, any, &size), 0);
  const std::string server(absl::StripPrefix(server_->Url(), "postgresql://cadre:very-secret@"));
  const auto connection = PostgresConnection::Connect(
      absl::StrCat("postgresql://cadre:very-secret@127.0.0.1:", ntohs(address.sin_port), ",",
                   server),
      absl::Seconds(10));
  close(hanging);
  ASSERT_THAT(connection, IsOk());
  EXPECT_EQ((*connection)->name(),
            absl::StrCat("database cadre at ", absl::StripSuffix(server, "/cadre")));
}

// Members may know epochs of a coordinator with another store.
TEST_F(PostgresStoreTest, LeaderBeginsAnEpochAboveThatOfAMember) {
  const auto store = Lead("one", 0);
  EXPECT_THAT(store->Commit({Put("key", "1")}), IsOk());
  EXPECT_EQ(store->BeginEpoch(1'800'000'000'000, absl::Now()).value(), 1'800'000'000'001u);
  EXPECT_THAT(store->Commit({Put("key", "2")}), IsOk());
  EXPECT_EQ(store->Get("key").value(), "2");
}

TEST_F(PostgresStoreTest, BeatsOfTheLeader) {
  const auto store = Lead("one", 0);
  LeaderRow one(server_->Url(), "one");
  LeaderRow two(server_->Url(), "two");
  const auto beat = [](LeaderRow& row) { return Patiently([&] { return row.Beat(); }); };
  const auto release = [](LeaderRow& row) { return Patiently([&] { return row.Release(); }); };
  const uint64_t before = ReadPatiently(two).beat;
  EXPECT_THAT(beat(one), IsOk());
  const Leader leader = ReadPatiently(two);
  // One that was sent again may have been carried out before.
  EXPECT_GT(leader.beat, before);
  EXPECT_EQ(leader.address, "one:7000");
  EXPECT_THAT(beat(two), IsError(absl::StatusCode::kAborted, "one:7000 leads since term 1"));
  EXPECT_THAT(release(two), IsOk());
  EXPECT_THAT(beat(one), IsOk()) << "only the leader may release the lead";
  EXPECT_THAT(release(one), IsOk());
  EXPECT_EQ(ReadPatiently(two).instance, "");
}

// Each transaction is carried out once, although answers are lost with the server's processes.
TEST_F(PostgresStoreTest, TransactionsSurviveRestartsOfTheServer) {
  const auto store = Lead("one", 0);
  std::atomic<bool> restarted = false;
  int committed = 0;
  std::thread commits([&] {
    while (!restarted) {
      const std::string number = absl::StrCat(++committed);
      EXPECT_THAT(store->Commit({Put("counter", number), Put("n/" + number, number)}), IsOk());
    }
  });
  for (int i = 0; i < 4; ++i) {
    absl::SleepFor(absl::Milliseconds(200));
    i % 2 == 0 ? server_->Kill() : server_->Stop();
    server_->Start();
  }
  restarted = true;
  commits.join();
  EXPECT_EQ(store->Get("counter").value(), absl::StrCat(committed));
  EXPECT_EQ(store->Scan("n/")->size(), static_cast<size_t>(committed));
  EXPECT_EQ(server_->Psql("SELECT sequence FROM cadre_leader"), absl::StrCat(committed));
}

// The server has carried out the transaction, but its answer was lost.
TEST_F(PostgresStoreTest, RepeatedTransactionChangesNothing) {
  const auto store = Lead("one", 0);
  EXPECT_THAT(store->Commit({Put("key", "1")}), IsOk());
  server_->Psql("UPDATE cadre_leader SET sequence = 2");
  EXPECT_THAT(store->Commit({Put("key", "2")}), IsOk()) << "it was carried out before";
  EXPECT_EQ(store->Get("key").value(), "1");
  server_->Psql("UPDATE cadre_leader SET sequence = 1");
  EXPECT_THAT(store->Commit({Put("key", "3")}),
              IsError(absl::StatusCode::kDataLoss, "was an older copy of the database restored?"));
}

TEST_F(PostgresStoreTest, ServerThatIsAwayIsNamed) {
  auto store = Patiently([&] {
    return PostgresStore::Open({.url = server_->Url(),
                                .instance = "one",
                                .address = "one:1",
                                .patience = absl::Milliseconds(300)});
  });
  ASSERT_THAT(store, IsOk());
  server_->Stop();
  const absl::Time begin = absl::Now();
  EXPECT_THAT((*store)->Get("key"),
              IsError(absl::StatusCode::kUnavailable, "database cadre at 127.0.0.1"));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(20));
  server_->Start();
  EXPECT_THAT((*store)->Get("key"), IsOk());
}

TEST_F(PostgresStoreTest, RefusalsNameTheRemedyAndNoPassword) {
  const auto refusal = [](const std::string& url) {
    const auto opened = Patiently(
        [&] { return PostgresStore::Open({.url = url, .instance = "i", .address = "a:1"}); });
    EXPECT_FALSE(opened.ok());
    EXPECT_THAT(opened.status().message(), Not(HasSubstr("secret"))) << url;
    return opened.status();
  };
  EXPECT_THAT(refusal(server_->Url("cadre", "other-secret")),
              IsError(absl::StatusCode::kPermissionDenied, "PGPASSFILE"));
  EXPECT_THAT(refusal(server_->Url("absent")), IsError(absl::StatusCode::kNotFound, "createdb"));
  for (const char* url : {"postgresql://u:a@secret@127.0.0.1/db", "postgresql://u:a/secret@h/db",
                          "postgresql://u:secret/a@h/db", "postgresql://u:secret/a?b@h/db"}) {
    EXPECT_THAT(refusal(url), IsError(absl::StatusCode::kInvalidArgument, "the store's address"));
  }
  EXPECT_THAT(refusal("postgresql://[secret"),
              IsError(absl::StatusCode::kInvalidArgument, "postgresql://[USER@]HOST"));
  ASSERT_THAT(Open(), IsOk());
  server_->Psql("UPDATE cadre_leader SET version = 2");
  EXPECT_THAT(refusal(server_->Url()),
              IsError(absl::StatusCode::kFailedPrecondition, "its tables have version 2"));
}

TEST_F(PostgresStoreTest, CoordinatorsCreateTheTablesTogether) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([i] { EXPECT_THAT(Open(absl::StrCat("c", i)), IsOk()); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(server_->Psql("SELECT count(*) FROM cadre_leader"), "1");
}

TEST_F(PostgresStoreTest, BackupIsAFileOfAnSqliteStore) {
  const auto store = Lead("one", 0);
  v1::MetaRecord meta;
  meta.set_epoch(7);
  EXPECT_THAT(store->Commit({Put(kMetaKey, meta.SerializeAsString()), Put("run/1", "a")}), IsOk());
  const TemporaryFolder folder;
  ASSERT_THAT(WriteBackup(*store, folder / "backup"), IsOk());
  const auto copy = SqliteStore::Open({.path = folder / "backup"});
  ASSERT_THAT(copy, IsOk());
  EXPECT_EQ((*copy)->Get("run/1").value(), "a");
  ASSERT_TRUE(meta.ParseFromString((*copy)->Get(kMetaKey).value().value()));
  EXPECT_TRUE(meta.backup());
}

}  // namespace
}  // namespace cadre
