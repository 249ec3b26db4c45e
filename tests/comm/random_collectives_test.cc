// Random collectives by seed: groups of 1 to 8 ranks over any kind of link run random programs on
// two channels concurrently, among random members, with random types, sizes, algorithms, intervals
// and delays. In some groups a rank is lost. No call hangs, no result is wrong, and no descriptor
// or thread remains.
//
//   comm_random_collectives_test --count=10000 --seed=1
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/random.h"
#include "comm/mesh_communicators.h"
#include "gflags/gflags.h"
#include "tensor/mesh.h"
#include "tests/comm/exact_data.h"
#include "tests/comm/random_intervals.h"
#include "tests/comm/transport/ranks.h"

DEFINE_uint64(count, 2000, "collectives");
DEFINE_uint64(seed, 1, "first seed");

namespace cadre {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DType kNumbers[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kUInt64,
                              DType::kFloat64};
constexpr Algorithm kAlgorithms[] = {Algorithm::kRing, Algorithm::kButterfly,
                                     Algorithm::kHalvingDoubling};
constexpr int kChannels = 2;
// Longer than any call may take: a timeout means a deadlock.
constexpr absl::Duration kTimeout = absl::Seconds(100);

// Random numbers that depend on seed and stream only, so they are equal on all ranks.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : numbers_(seed, RandomStream::kTest, stream) {}
  uint64_t operator()() { return numbers_.Bits(drawn_++); }
  uint64_t Below(uint64_t limit) { return (*this)() % limit; }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  using result_type = uint64_t;
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }

 private:
  RandomSequence numbers_;
  uint64_t drawn_ = 0;
};

// Usually a few elements; sometimes more than any link buffers.
size_t RandomSize(Random& random) {
  if (random.OneIn(40)) return random.Below(150'000);
  if (random.OneIn(5)) return random.Below(5'000);
  return random.Below(80);
}

// How a rank of a group is lost.
enum class Loss { kNone, kAborts, kLeaves };

// The parameters of a group.
struct GroupSpec {
  explicit GroupSpec(uint64_t seed) : seed(seed) {
    Random random(seed, 0);
    ranks = 1 + random.Below(8);
    const uint64_t kind = random.Below(8);
    // Usually threads, which reach the rarest orders; other links have separate tests.
    wire = kind < 5 ? Wire::kThreads : kind < 7 ? Wire::kSharedMemory : Wire::kTcp;
    collectives = 20 + random.Below(30);
    if (ranks > 1 && random.OneIn(3)) {
      loss = random.OneIn(2) ? Loss::kAborts : Loss::kLeaves;
      victim = random.Below(ranks);
      lost_before = random.Below(collectives);
    }
  }

  std::string ToString() const {
    std::string text = absl::StrCat("seed ", seed, ": ", ranks, " ranks, ", WireName(wire));
    if (loss == Loss::kNone) return text;
    return absl::StrCat(text, ", rank ", victim, loss == Loss::kAborts ? " aborts" : " leaves",
                        " before ", lost_before);
  }

  const uint64_t seed;
  int ranks = 1;
  Wire wire = Wire::kThreads;
  uint64_t collectives = 0;
  Loss loss = Loss::kNone;
  int victim = -1;
  uint64_t lost_before = 0;
};

// One rank's thread on one channel.
class Program {
 public:
  Program(const GroupSpec& spec, int rank, int channel, MeshCommunicators& comms)
      : spec_(spec), rank_(rank), channel_(channel), comms_(comms) {}

  // Executes `end` collectives, or fewer after an error or a wrong result.
  absl::Status Run(uint64_t end) {
    for (uint64_t i = 0; i < end; ++i) {
      const absl::Status status = Step(i);
      if (!status.ok() || !wrong_.empty()) return status;
      ++done_;
    }
    return absl::OkStatus();
  }
  // Detects the loss of a rank that no earlier collective of this rank needed.
  absl::Status Finish() { return comms_.All(channel_).Barrier(); }

  const std::string& wrong() const { return wrong_; }
  uint64_t done() const { return done_; }

 private:
  absl::Status Step(uint64_t number) {
    const uint64_t stream = 1 + number * kChannels + channel_;
    Random random(spec_.seed, stream);
    Communicator& among = comms_.Among(Members(random), channel_);
    data_seed_ = spec_.seed * 100'000 + stream;
    Delay(stream);
    switch (random.Below(8)) {
      case 0:
      case 1:
      case 2:
        return AllReduce(among, random);
      case 3:
        return ReduceScatter(among, random);
      case 4:
        return AllGather(among, random);
      case 5:
        return AllToAll(among, random);
      case 6:
        return Broadcast(among, random);
      default:
        return among.Barrier();
    }
  }

  // Divides the ranks into a few sets in random order; returns the set of this rank.
  std::vector<int> Members(Random& random) const {
    const uint64_t sets = random.OneIn(2) ? 1 : 1 + random.Below(3);
    std::vector<uint64_t> set_of;
    for (int rank = 0; rank < spec_.ranks; ++rank) set_of.push_back(random.Below(sets));
    std::vector<int> members = AllRanks(spec_.ranks);
    if (random.OneIn(3)) std::shuffle(members.begin(), members.end(), random);
    std::erase_if(members, [&](int rank) { return set_of[rank] != set_of[rank_]; });
    return members;
  }

  void Delay(uint64_t stream) const {
    Random own(spec_.seed, 1'000'000 + stream * 64 + rank_);
    const int64_t delay = own.Below(1500);
    if (own.OneIn(12)) absl::SleepFor(absl::Microseconds(delay));
  }

  Bytes Data(DType type, int rank, size_t elements) const {
    return ExactData(type, data_seed_, rank, elements);
  }
  Bytes Sum(DType type, const Communicator& among, size_t elements) const {
    return ExactSum(type, data_seed_, among.members(), elements);
  }

  absl::Status AllReduce(Communicator& among, Random& random) {
    const Algorithm algorithm = kAlgorithms[random.Below(4)];
    const DType type = kNumbers[random.Below(5)];
    const size_t elements = RandomSize(random);
    Bytes data = Data(type, rank_, elements);
    const absl::Status status = among.AllReduce(algorithm, type, data);
    Expect(status, data == Sum(type, among, elements), "all-reduce");
    return status;
  }

  absl::Status ReduceScatter(Communicator& among, Random& random) {
    const Algorithm algorithm = kAlgorithms[random.Below(3)];
    const DType type = kNumbers[random.Below(5)];
    const size_t elements = RandomSize(random);
    const auto intervals = RandomIntervals(random, elements, among.size());
    const Interval own = intervals[among.index()];
    Bytes data = Data(type, rank_, elements);
    const absl::Status status = among.ReduceScatter(algorithm, type, data, intervals);
    Expect(status, Equal(own, type, data, Sum(type, among, elements)), "reduce-scatter");
    return status;
  }

  absl::Status AllGather(Communicator& among, Random& random) {
    const Algorithm algorithm = kAlgorithms[random.Below(3)];
    const DType type = random.OneIn(3) ? DType::kBytes : kNumbers[random.Below(5)];
    const size_t elements = RandomSize(random);
    const auto intervals = RandomIntervals(random, elements, among.size());
    Bytes data = Data(type, rank_, elements);
    const absl::Status status = among.AllGather(algorithm, type, data, intervals);
    for (size_t i = 0; i < intervals.size(); ++i) {
      Expect(status, Equal(intervals[i], type, data, Data(type, among.members()[i], elements)),
             "all-gather");
    }
    return status;
  }

  // The size of a message depends on its two members.
  absl::Status AllToAll(Communicator& among, Random& random) {
    const uint64_t seed = random();
    const auto size = [&](int from, int to) {
      Random pair(seed, from * 64 + to);
      return pair.OneIn(3) ? 0 : RandomSize(pair);
    };
    const int members = among.size();
    const int self = among.index();
    std::vector<Bytes> in(members), out(members);
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    for (int i = 0; i < members; ++i) {
      out[i] = Data(DType::kBytes, rank_, size(self, i));
      in[i].resize(size(i, self));
      send.emplace_back(out[i]);
      receive.emplace_back(in[i]);
    }
    const absl::Status status = among.AllToAll(send, receive);
    for (int i = 0; i < members; ++i) {
      Expect(status, in[i] == Data(DType::kBytes, among.members()[i], in[i].size()), "all-to-all");
    }
    return status;
  }

  absl::Status Broadcast(Communicator& among, Random& random) {
    const size_t bytes = RandomSize(random);
    const int root = random.Below(among.size());
    Bytes data = Data(DType::kBytes, rank_, bytes);
    const absl::Status status = among.Broadcast(data, root);
    Expect(status, data == Data(DType::kBytes, among.members()[root], bytes), "broadcast");
    return status;
  }

  static bool Equal(const Interval& interval, DType type, const Bytes& a, const Bytes& b) {
    const int64_t element = SizeOf(type);
    return std::equal(a.begin() + interval.begin * element, a.begin() + interval.end * element,
                      b.begin() + interval.begin * element);
  }

  void Expect(const absl::Status& status, bool correct, absl::string_view what) {
    if (!status.ok() || correct || !wrong_.empty()) return;
    wrong_ =
        absl::StrCat(what, " is wrong on rank ", rank_, ", channel ", channel_, ", step ", done_);
  }

  const GroupSpec& spec_;
  const int rank_;
  const int channel_;
  MeshCommunicators& comms_;
  uint64_t data_seed_ = 0;
  std::string wrong_;
  uint64_t done_ = 0;
};

struct RankOutcome {
  absl::Status statuses[kChannels];
  std::string wrong;
  uint64_t done = 0;
};

// The program of one rank.
RankOutcome RunRank(const GroupSpec& spec, std::unique_ptr<Transport> transport) {
  const int rank = transport->rank();
  const bool is_victim = rank == spec.victim;
  const uint64_t end = is_victim ? spec.lost_before : spec.collectives;
  MeshCommunicators comms(*transport, Mesh({{"data", spec.ranks}}));
  std::vector<Program> programs;
  for (int channel = 0; channel < kChannels; ++channel) {
    programs.emplace_back(spec, rank, channel, comms);
  }
  RankOutcome outcome;
  const auto run = [&](int channel) {
    Program& program = programs[channel];
    absl::Status& status = outcome.statuses[channel];
    // A rank that aborts does so while its other thread is in a call.
    const bool aborts = is_victim && spec.loss == Loss::kAborts;
    status = program.Run(aborts && channel == 1 ? spec.collectives : end);
    if (status.ok() && aborts && channel == 0) transport->Abort(absl::AbortedError("aborted"));
    if (status.ok() && !is_victim) status = program.Finish();
  };
  std::thread second(run, 1);
  run(0);
  second.join();
  for (const Program& program : programs) {
    if (outcome.wrong.empty()) outcome.wrong = program.wrong();
    outcome.done += program.done();
  }
  return outcome;
}

void Check(const GroupSpec& spec, const std::vector<RankOutcome>& outcomes) {
  for (int rank = 0; rank < std::ssize(outcomes); ++rank) {
    EXPECT_EQ(outcomes[rank].wrong, "");
    if (rank == spec.victim) continue;
    for (const absl::Status& status : outcomes[rank].statuses) {
      const bool expected =
          spec.loss == Loss::kNone ? status.ok() : status.code() == absl::StatusCode::kUnavailable;
      EXPECT_TRUE(expected) << "rank " << rank << ": " << status;
    }
  }
}

// Returns the maximum number of collectives that a rank has completed.
uint64_t RunGroup(const GroupSpec& spec) {
  SCOPED_TRACE(spec.ToString());
  Transports group = MakeTransports(spec.wire, spec.ranks, kTimeout);
  std::vector<RankOutcome> outcomes(spec.ranks);
  OnRanks(spec.ranks, [&](int rank) { outcomes[rank] = RunRank(spec, std::move(group[rank])); });
  Check(spec, outcomes);
  uint64_t done = 0;
  for (const RankOutcome& outcome : outcomes) done = std::max(done, outcome.done);
  return done;
}

int64_t EntriesOf(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST(RandomCollectivesTest, CompleteWithExactResults) {
  // The first group of each kind opens descriptors that the process keeps.
  for (const Wire wire : {Wire::kThreads, Wire::kSharedMemory, Wire::kTcp}) MakeTransports(wire, 2);
  const int64_t descriptors = EntriesOf("/proc/self/fd");
  const int64_t threads = EntriesOf("/proc/self/task");
  uint64_t done = 0;
  int losses = 0;
  uint64_t seed = FLAGS_seed;
  for (; done < FLAGS_count && !HasFailure(); ++seed) {
    const GroupSpec spec(seed);
    if (spec.loss != Loss::kNone) ++losses;
    done += RunGroup(spec);
  }
  EXPECT_EQ(EntriesOf("/proc/self/fd"), descriptors);
  EXPECT_EQ(EntriesOf("/proc/self/task"), threads);
  std::cout << done << " collectives in " << seed - FLAGS_seed << " groups, of which " << losses
            << " lost a rank\n";
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  return RUN_ALL_TESTS();
}
