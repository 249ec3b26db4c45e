// Random collectives by seed: groups of 1 to 8 ranks over any wire run random programs on two
// channels at once, among random members, with random types, sizes, algorithms, intervals and
// delays; in some a rank dies on the way. Nothing hangs, no sum is wrong, nothing is left over.
//
//   comm_random_collectives_test --count=10000 --seed=1
#include <dirent.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/random.h"
#include "gflags/gflags.h"
#include "tensor/mesh.h"
#include "tests/worker/comm/exact_data.h"
#include "tests/worker/transport/ranks.h"
#include "worker/comm/mesh_communicators.h"

DEFINE_uint64(count, 2000, "collectives");
DEFINE_uint64(seed, 1, "first seed");

namespace cadre {
namespace {

using Bytes = std::vector<std::byte>;

constexpr DType kNumbers[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kUInt64,
                              DType::kFloat64};
constexpr Algorithm kAlgorithms[] = {Algorithm::kRing, Algorithm::kButterfly,
                                     Algorithm::kHalvingDoubling, Algorithm::kHierarchical};
constexpr int kChannels = 2;
// Longer than any test may wait: running into it is a hang.
constexpr absl::Duration kTimeout = absl::Seconds(100);

// The n-th number of a place; the same on all ranks.
class Dice {
 public:
  Dice(uint64_t seed, uint64_t place) : numbers_(seed, RandomStream::kTest, place) {}
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

// A few elements mostly; now and then more than any link holds.
size_t RandomSize(Dice& dice) {
  if (dice.OneIn(40)) return dice.Below(150'000);
  if (dice.OneIn(5)) return dice.Below(5'000);
  return dice.Below(80);
}

std::vector<Interval> RandomPieces(Dice& dice, int64_t elements, size_t members) {
  std::vector<int64_t> borders = {0, elements};
  const size_t intervals = members + dice.Below(3);
  for (size_t i = 1; i < intervals; ++i) {
    borders.push_back(static_cast<int64_t>(dice.Below(static_cast<uint64_t>(elements) + 1)));
  }
  std::sort(borders.begin(), borders.end());
  std::vector<Interval> all;
  for (size_t i = 1; i < borders.size(); ++i) all.push_back({borders[i - 1], borders[i]});
  if (dice.OneIn(2)) std::shuffle(all.begin(), all.end(), dice);
  all.resize(members);
  return all;
}

// How one rank of a group ends before the others.
enum class Death { kNone, kAborts, kLeaves };

// What a seed decides for a whole group.
struct World {
  explicit World(uint64_t seed) : seed(seed) {
    Dice dice(seed, 0);
    ranks = 1 + static_cast<int>(dice.Below(8));
    const uint64_t kind = dice.Below(8);
    // Threads reach the rarest orders; the others have less to do here than in their own tests.
    wire = kind < 5 ? Wire::kThreads : kind < 7 ? Wire::kSharedMemory : Wire::kTcp;
    collectives = 20 + dice.Below(30);
    if (ranks > 1 && dice.OneIn(3)) {
      death = dice.OneIn(2) ? Death::kAborts : Death::kLeaves;
      victim = static_cast<int>(dice.Below(static_cast<uint64_t>(ranks)));
      dies_before = dice.Below(collectives);
    }
  }

  std::string ToString() const {
    std::string text =
        "seed " + std::to_string(seed) + ": " + std::to_string(ranks) + " ranks, " + WireName(wire);
    if (death == Death::kNone) return text;
    return text + ", rank " + std::to_string(victim) +
           (death == Death::kAborts ? " aborts" : " leaves") + " before " +
           std::to_string(dies_before);
  }

  const uint64_t seed;
  int ranks = 1;
  Wire wire = Wire::kThreads;
  uint64_t collectives = 0;
  Death death = Death::kNone;
  int victim = -1;
  uint64_t dies_before = 0;
};

// One rank's thread on one channel.
class Program {
 public:
  Program(const World& world, int rank, int channel, MeshCommunicators& comms)
      : world_(world), rank_(rank), channel_(channel), comms_(comms) {}

  // Until `end`, or an error, or a wrong sum.
  absl::Status Run(uint64_t end) {
    for (uint64_t i = 0; i < end; ++i) {
      const absl::Status status = Step(i);
      if (!status.ok() || !wrong_.empty()) return status;
      ++done_;
    }
    return absl::OkStatus();
  }
  // After the last: whoever has got through without the dead meets it here.
  absl::Status Finish() { return comms_.All(channel_).Barrier(); }

  const std::string& wrong() const { return wrong_; }
  uint64_t done() const { return done_; }

 private:
  absl::Status Step(uint64_t number) {
    const uint64_t place = 1 + number * kChannels + static_cast<uint64_t>(channel_);
    Dice dice(world_.seed, place);
    Communicator& among = comms_.Among(Members(dice), channel_);
    // Members share what follows; the groups that are busy beside them have their own data.
    data_seed_ = world_.seed * 100'000 + place;
    Delay(place);
    switch (dice.Below(8)) {
      case 0:
      case 1:
      case 2:
        return AllReduce(among, dice);
      case 3:
        return ReduceScatter(among, dice);
      case 4:
        return AllGather(among, dice);
      case 5:
        return AllToAll(among, dice);
      case 6:
        return Broadcast(among, dice);
      default:
        return among.Barrier();
    }
  }

  // Ranks fall into a few groups, each in a random order; this rank's.
  std::vector<int> Members(Dice& dice) const {
    const uint64_t groups = dice.OneIn(2) ? 1 : 1 + dice.Below(3);
    std::vector<uint64_t> group_of;
    for (int rank = 0; rank < world_.ranks; ++rank) group_of.push_back(dice.Below(groups));
    std::vector<int> order(group_of.size());
    std::iota(order.begin(), order.end(), 0);
    if (dice.OneIn(3)) std::shuffle(order.begin(), order.end(), dice);
    std::vector<int> members;
    for (const int rank : order) {
      if (group_of[rank] == group_of[rank_]) {
        members.push_back(rank);
      }
    }
    return members;
  }

  void Delay(uint64_t place) const {
    Dice own(world_.seed, 1'000'000 + place * 64 + static_cast<uint64_t>(rank_));
    if (own.OneIn(12)) absl::SleepFor(absl::Microseconds(static_cast<int64_t>(own.Below(1500))));
  }

  Bytes Data(DType type, int rank, size_t elements) const {
    return ExactData(type, data_seed_, rank, elements);
  }
  Bytes Sum(DType type, const Communicator& among, size_t elements) const {
    return ExactSum(type, data_seed_, among.members(), elements);
  }

  absl::Status AllReduce(Communicator& among, Dice& dice) {
    const Algorithm algorithm = kAlgorithms[dice.Below(4)];
    const DType type = kNumbers[dice.Below(5)];
    const size_t elements = RandomSize(dice);
    Bytes data = Data(type, rank_, elements);
    const absl::Status status = among.AllReduce(algorithm, type, data);
    Expect(status, data == Sum(type, among, elements), "all-reduce");
    return status;
  }

  absl::Status ReduceScatter(Communicator& among, Dice& dice) {
    const Algorithm algorithm = kAlgorithms[dice.Below(3)];
    const DType type = kNumbers[dice.Below(5)];
    const size_t elements = RandomSize(dice);
    const auto intervals =
        RandomPieces(dice, static_cast<int64_t>(elements), among.members().size());
    const Interval own = intervals[among.index()];
    Bytes data = Data(type, rank_, elements);
    const absl::Status status = among.ReduceScatter(algorithm, type, data, intervals);
    Expect(status, Equal(own, type, data, Sum(type, among, elements)), "reduce-scatter");
    return status;
  }

  absl::Status AllGather(Communicator& among, Dice& dice) {
    const Algorithm algorithm = kAlgorithms[dice.Below(3)];
    const DType type = dice.OneIn(3) ? DType::kBytes : kNumbers[dice.Below(5)];
    const size_t elements = RandomSize(dice);
    const auto intervals =
        RandomPieces(dice, static_cast<int64_t>(elements), among.members().size());
    Bytes data = Data(type, rank_, elements);
    const absl::Status status = among.AllGather(algorithm, type, data, intervals);
    for (size_t i = 0; i < intervals.size(); ++i) {
      Expect(status, Equal(intervals[i], type, data, Data(type, among.members()[i], elements)),
             "all-gather");
    }
    return status;
  }

  // Member i sends member j the first of its data, as many bytes as the two of them draw.
  absl::Status AllToAll(Communicator& among, Dice& dice) {
    const uint64_t salt = dice();
    const auto size = [&](size_t from, size_t to) {
      Dice pair(salt, from * 64 + to);
      return pair.OneIn(3) ? 0 : RandomSize(pair);
    };
    const size_t members = among.members().size();
    const auto self = static_cast<size_t>(among.index());
    std::vector<Bytes> in(members), out(members);
    std::vector<std::span<const std::byte>> send;
    std::vector<std::span<std::byte>> receive;
    for (size_t i = 0; i < members; ++i) {
      out[i] = Data(DType::kBytes, rank_, size(self, i));
      in[i].resize(size(i, self));
      send.emplace_back(out[i]);
      receive.emplace_back(in[i]);
    }
    const absl::Status status = among.AllToAll(send, receive);
    for (size_t i = 0; i < members; ++i) {
      Expect(status, in[i] == Data(DType::kBytes, among.members()[i], in[i].size()), "all-to-all");
    }
    return status;
  }

  absl::Status Broadcast(Communicator& among, Dice& dice) {
    const size_t bytes = RandomSize(dice);
    const auto root = static_cast<size_t>(dice.Below(among.members().size()));
    Bytes data = Data(DType::kBytes, rank_, bytes);
    const absl::Status status = among.Broadcast(data, static_cast<int>(root));
    Expect(status, data == Data(DType::kBytes, among.members()[root], bytes), "broadcast");
    return status;
  }

  static bool Equal(const Interval& interval, DType type, const Bytes& a, const Bytes& b) {
    const auto element = static_cast<std::ptrdiff_t>(SizeOf(type));
    return std::equal(a.begin() + interval.begin * element, a.begin() + interval.end * element,
                      b.begin() + interval.begin * element);
  }

  void Expect(const absl::Status& status, bool right, const char* what) {
    if (!status.ok() || right || !wrong_.empty()) return;
    wrong_ = std::string(what) + " is wrong on rank " + std::to_string(rank_) + ", channel " +
             std::to_string(channel_) + ", step " + std::to_string(done_);
  }

  const World& world_;
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

// Everything that one rank does.
RankOutcome RunRank(const World& world, std::unique_ptr<Transport> transport) {
  const int rank = transport->rank();
  const bool dies = rank == world.victim;
  const uint64_t end = dies ? world.dies_before : world.collectives;
  MeshCommunicators comms(*transport, Mesh({{"data", world.ranks}}));
  std::vector<Program> programs;
  for (int channel = 0; channel < kChannels; ++channel) {
    programs.emplace_back(world, rank, channel, comms);
  }
  RankOutcome outcome;
  const auto run = [&](int channel) {
    Program& program = programs[channel];
    absl::Status& status = outcome.statuses[channel];
    // One that aborts does so in the middle of what its other thread does.
    const bool aborts = dies && world.death == Death::kAborts;
    status = program.Run(aborts && channel == 1 ? world.collectives : end);
    if (status.ok() && aborts && channel == 0) transport->Abort(absl::AbortedError("killed"));
    if (status.ok() && !dies) status = program.Finish();
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

void Check(const World& world, const std::vector<RankOutcome>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    EXPECT_EQ(outcomes[rank].wrong, "");
    // What the dead one saw is its own affair.
    if (static_cast<int>(rank) == world.victim) continue;
    for (const absl::Status& status : outcomes[rank].statuses) {
      const bool right = world.death == Death::kNone
                             ? status.ok()
                             : status.code() == absl::StatusCode::kUnavailable;
      EXPECT_TRUE(right) << "rank " << rank << ": " << status;
    }
  }
}

// Returns the collectives that were done, counted once for all ranks.
uint64_t RunWorld(const World& world) {
  SCOPED_TRACE(world.ToString());
  Transports group = MakeTransports(world.wire, world.ranks, kTimeout);
  std::vector<RankOutcome> outcomes(static_cast<size_t>(world.ranks));
  OnRanks(world.ranks, [&](int rank) {
    const auto i = static_cast<size_t>(rank);
    outcomes[i] = RunRank(world, std::move(group[i]));
  });
  Check(world, outcomes);
  uint64_t done = 0;
  for (const RankOutcome& outcome : outcomes) done = std::max(done, outcome.done);
  return done;
}

size_t EntriesOf(const char* folder) {
  DIR* opened = opendir(folder);
  EXPECT_NE(opened, nullptr) << folder;
  size_t entries = 0;
  while (opened != nullptr && readdir(opened) != nullptr) ++entries;
  if (opened != nullptr) closedir(opened);
  return entries;
}

TEST(RandomCollectivesTest, CompleteWithExactResults) {
  // The first of each wire opens what the process keeps.
  for (const Wire wire : {Wire::kThreads, Wire::kSharedMemory, Wire::kTcp}) MakeTransports(wire, 2);
  const size_t descriptors = EntriesOf("/proc/self/fd");
  const size_t threads = EntriesOf("/proc/self/task");
  uint64_t done = 0;
  uint64_t deaths = 0;
  uint64_t seed = FLAGS_seed;
  for (; done < FLAGS_count && !HasFailure(); ++seed) {
    const World world(seed);
    if (world.death != Death::kNone) ++deaths;
    done += RunWorld(world);
  }
  EXPECT_EQ(EntriesOf("/proc/self/fd"), descriptors);
  EXPECT_EQ(EntriesOf("/proc/self/task"), threads);
  RecordProperty("collectives", std::to_string(done));
  RecordProperty("groups", std::to_string(seed - FLAGS_seed));
  RecordProperty("deaths", std::to_string(deaths));
  std::printf("%llu collectives in %llu groups, in %llu of which a rank died\n",
              static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(seed - FLAGS_seed),
              static_cast<unsigned long long>(deaths));
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  gflags::ParseCommandLineFlags(&argc, &argv, true);
  return RUN_ALL_TESTS();
}
