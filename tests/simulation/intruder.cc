#include "tests/simulation/intruder.h"

#include <utility>

#include "base/protocol.h"
#include "server/client/proof.h"

namespace cadre::simulation {
namespace {

constexpr char kHost[] = "intruder";
constexpr size_t kMaxRecorded = 200;

v1::Hello MakeHello() {
  v1::Hello hello;
  hello.set_role(v1::ROLE_WORKER);
  hello.set_name(kHost);
  hello.set_incarnation(kHost);
  hello.set_address("intruder:1");
  hello.set_host(kHost);
  hello.set_device_kind(v1::Cluster::CUDA);
  return hello;
}

// The rank that the message names; null if it names none.
v1::RankSlot* PlaceOf(v1::MemberMessage& message) {
  if (message.has_prepared()) return message.mutable_prepared()->mutable_place();
  if (message.has_contributed()) return message.mutable_contributed()->mutable_place();
  if (message.has_adopted()) return message.mutable_adopted()->mutable_place();
  if (message.has_evaluated()) return message.mutable_evaluated()->mutable_place();
  if (message.has_group_failed()) return message.mutable_group_failed()->mutable_place();
  if (message.has_restaged()) return message.mutable_restaged()->mutable_place();
  if (message.has_progress()) return message.mutable_progress()->mutable_place();
  if (message.has_measured()) return message.mutable_measured()->mutable_place();
  return nullptr;
}

}  // namespace

Intruder::Intruder(World& world, Network& network, Directory& directory)
    : world_(world),
      directory_(directory),
      life_(&world.hosts[kHost].process),
      link_(
          world, network,
          MembershipLink::Options{.host = kHost,
                                  .hello = MakeHello,
                                  .on_message = [](const v1::CoordinatorMessage&) { return true; },
                                  .on_connection = [](bool) {},
                                  .heartbeat = [] { return v1::Heartbeat(); },
                                  .on_refused = [] {}}) {}

void Intruder::Start() {
  link_.Start();
  SendNext();
}

void Intruder::Record(const v1::MemberMessage& message) {
  if (message.has_hello() || message.has_heartbeat() || message.has_goodbye()) return;
  recorded_.push_back(message);
  if (recorded_.size() > kMaxRecorded) recorded_.pop_front();
}

void Intruder::SendNext() {
  Dice& dice = world_.dice;
  world_.timeline.After(dice.Between(absl::Milliseconds(100), absl::Seconds(4)), life_,
                        [this] { SendNext(); });
  if (recorded_.empty()) return;
  v1::MemberMessage message = recorded_[dice.Between(0, recorded_.size() - 1)];
  if (v1::RankSlot* const place = PlaceOf(message)) {
    if (dice.Chance(0.3)) place->set_generation(place->generation() + dice.Between(0, 3));
    if (dice.Chance(0.3)) place->set_group(dice.Between(0, 4));
    if (dice.Chance(0.3)) place->set_rank(dice.Between(0, 4));
    CallAggregator(*place);
  }
  if (message.has_contributed() && dice.Chance(0.5)) {
    message.mutable_contributed()->set_round(message.contributed().round() + 1);
    message.mutable_contributed()->set_base_version(message.contributed().round() - 1);
  }
  world_.Count("messages_forged");
  link_.Send(message);
}

void Intruder::CallAggregator(const v1::RankSlot& place) {
  Dice& dice = world_.dice;
  SimulatedAggregator& aggregator = *directory_[dice.Between(0, directory_.size() - 1)];
  if (!aggregator.up()) return;
  const v1::ShardState shard = aggregator.StateOf(place.run());
  v1::ContributionHeader header;
  header.set_protocol(kProtocol);
  header.set_run(place.run());
  header.set_lineage(shard.lineage());
  header.set_group(place.group());
  header.set_generation(dice.Chance(0.2) ? 0xffffffff : place.generation());
  header.set_rank(place.rank());
  header.set_base_version(shard.version());
  header.set_round(shard.version() + 1);
  header.set_samples(1);
  header.set_codec(v1::CODEC_FP32);
  header.set_chunk_elements(1);
  // The run has at least one parameter; its first element is on the first shard.
  if (shard.shard() == 0) header.add_ranges()->set_end(1);
  v1::PullRequest request;
  request.set_protocol(kProtocol);
  request.set_run(place.run());
  request.set_lineage(shard.lineage());
  request.set_group(place.group());
  request.set_generation(place.generation());
  request.set_version(shard.version());
  // The key of a generation of its own.
  SecretKey key;
  key.fill(1);
  Sign(key, "nonce", header);
  Sign(key, "nonce", request);
  world_.Count("aggregator_calls_forged");
  if (aggregator.Stage({0, kHost}, header).ok() || aggregator.Pull({0, kHost}, request).ok()) {
    world_.Violate(aggregator.name(), " has accepted a caller without the key of ", place.run(),
                   ", generation ", header.generation());
  }
}

}  // namespace cadre::simulation
