// Files of earlier builds, which the programs of this build open and continue: a store and the
// folders of two aggregators, with archives, of a run that was interrupted, and a checkpoint.
//
//   CADRE_MAKE_FIXTURE=1 build/tests/cluster_fixtures_test     # makes that of this build again
//
// A fixture is made once for each number of the protocol (base/protocol.h). From the release of the
// number on, it stays as it is as long as builds must open what it contains.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/protocol.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/formats/checkpoint_folder.h"
#include "nlohmann/json.hpp"
#include "tests/cluster/cluster.h"

namespace cadre::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(120);
constexpr SmallRun kShape = {
    .groups = 2, .ranks = 1, .aggregators = 2, .every_steps = 4, .steps = 200, .hidden = 4};
// Where the run that makes the checkpoint writes it: its manifest contains the path.
constexpr char kCheckpoints[] = "/tmp/cadre-fixture";

v1::RunSpec CodedSpec() {
  v1::RunSpec spec = SmallSpec(kShape);
  v1::Averaging& averaging = *spec.mutable_averaging();
  averaging.mutable_up()->set_codec(v1::CODEC_INT8);
  averaging.mutable_down()->set_codec(v1::CODEC_E3M0);
  averaging.mutable_outer()->mutable_nesterov()->set_learning_rate(0.7F);
  averaging.mutable_outer()->mutable_nesterov()->set_momentum(0.9F);
  averaging.set_copies(2);
  averaging.mutable_keep_versions()->set_every(2);
  return spec;
}

class FixturesTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  std::string fixture() const { return absl::StrCat(CADRE_FIXTURES, "/protocol-", GetParam()); }

  // What the coordinator and the aggregators read from the files, before a worker joins.
  nlohmann::json Read() {
    nlohmann::json read;
    const absl::Status started = cluster_.StartAll(/*aggregators=*/2, /*workers=*/0);
    EXPECT_TRUE(started.ok()) << started;
    if (!started.ok()) return read;
    const auto open = cluster_.Await(
        [](const v1::StatusReply& status) {
          return status.runs_size() == 1 && status.aggregators_size() == 2 &&
                 status.aggregators(0).shards_size() == 1 &&
                 status.aggregators(1).shards_size() == 1;
        },
        kLimit, "the run and its shards");
    EXPECT_TRUE(open.ok()) << open.status();
    if (!open.ok()) return read;
    const std::string model = cluster_.folder() + "/model.safetensors";
    EXPECT_THAT(RunCadre({"export", open->runs(0).run(), "-O", model, "--coordinator",
                          cluster_.coordinator()}),
                HasSubstr("version"));
    read["run"] = open->runs(0).run();
    read["version"] = open->runs(0).version();
    read["digest"] = open->runs(0).digest();
    read["loss"] = open->runs(0).loss();
    read["model_crc32c"] = ExtendCrc32c(0, ReadFile(model).value_or(""));
    return read;
  }

  // Ends all processes in order.
  void EndAll() {
    for (const char* const name :
         {"worker-0", "worker-1", "aggregator-0", "aggregator-1", "coordinator"}) {
      cluster_.Signal(name, SIGTERM);
      EXPECT_TRUE(cluster_.process(name).WaitUntil(absl::Now() + kLimit).has_value()) << name;
    }
  }

  // The names of what a fixture has of the cluster's folder.
  static constexpr const char* kParts[] = {"store.db", "aggregator-0", "aggregator-1"};

  Cluster cluster_{{.archive = true}};
};

TEST_P(FixturesTest, FilesAreOpenedAndContinued) {
  for (const char* const part : kParts) {
    fs::copy(fixture() + "/" + part, cluster_.folder() + "/" + part, fs::copy_options::recursive);
  }
  const nlohmann::json expected =
      nlohmann::json::parse(ReadFile(fixture() + "/expected.json").value());
  const nlohmann::json read = Read();
  EXPECT_EQ(read, expected);
  const std::string run = expected["run"];
  EXPECT_THAT(RunCadre({"replay", cluster_.folder() + "/aggregator-0/" + run,
                        cluster_.folder() + "/aggregator-1/" + run}),
              HasSubstr(absl::StrCat("digest ", std::string(expected["digest"]))));
  for (const char* const worker : {"worker-0", "worker-1"}) {
    ASSERT_TRUE(cluster_.StartWorker(worker).ok());
  }
  const auto done = cluster_.AwaitDone(run, kLimit);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(FindRun(*done, run)->version(), kShape.steps / kShape.every_steps);
}

TEST_P(FixturesTest, CheckpointIsContinued) {
  v1::RunSpec spec = SmallSpec(kShape);
  spec.mutable_checkpoint()->set_from(fixture() + "/checkpoint");
  spec.mutable_checkpoint()->set_from_step(kShape.steps / 2);
  const auto run = cluster_.StartRun(spec);
  ASSERT_TRUE(run.ok()) << run.status();
  const auto done = cluster_.AwaitDone(*run, kLimit);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(FindRun(*done, *run)->step(), kShape.steps);
  EXPECT_EQ(FindRun(*done, *run)->version(), kShape.steps / 2 / kShape.every_steps)
      << "the run begins at the step of the checkpoint";
}

INSTANTIATE_TEST_SUITE_P(Protocols, FixturesTest, ::testing::Values(2));

class MakeFixture : public FixturesTest {
 protected:
  void SetUp() override {
    if (getenv("CADRE_MAKE_FIXTURE") == nullptr) GTEST_SKIP() << "CADRE_MAKE_FIXTURE is not set";
    fs::create_directories(fixture());
  }
  // Replaces a part of the fixture.
  void Save(const std::string& from, const std::string& part) {
    fs::remove_all(fixture() + "/" + part);
    fs::copy(from, fixture() + "/" + part, fs::copy_options::recursive);
    // Those of the process that has ended.
    std::error_code ignored;
    for (const char* const file : {"/port", "/.lock"}) {
      fs::remove(fixture() + "/" + part + file, ignored);
    }
  }
};

TEST_P(MakeFixture, StoreAndFolders) {
  v1::RunSpec spec = CodedSpec();
  const auto run = cluster_.StartRun(spec);
  ASSERT_TRUE(run.ok()) << run.status();
  const auto half = cluster_.Await(
      [&](const v1::StatusReply& status) { return FindRun(status, *run)->version() >= 3; }, kLimit,
      "version 3");
  ASSERT_TRUE(half.ok()) << half.status();
  EndAll();
  for (const char* const part : kParts) Save(cluster_.folder() + "/" + part, part);
  std::ofstream(fixture() + "/expected.json") << Read().dump(2) << "\n";
}

TEST_P(MakeFixture, Checkpoint) {
  v1::RunSpec spec = SmallSpec(kShape);
  spec.mutable_stop()->set_steps(kShape.steps / 2);
  spec.mutable_checkpoint()->set_directory(kCheckpoints);
  const auto run = cluster_.StartRun(spec);
  ASSERT_TRUE(run.ok()) << run.status();
  ASSERT_TRUE(cluster_.AwaitDone(*run, kLimit).ok());
  const auto newest = NewestCheckpoint(kCheckpoints);
  ASSERT_TRUE(newest.ok()) << newest.status();
  Save(newest->path, "checkpoint");
  fs::remove_all(kCheckpoints);
}

INSTANTIATE_TEST_SUITE_P(ThisBuild, MakeFixture, ::testing::Values(kProtocol));

}  // namespace
}  // namespace cadre::testing
