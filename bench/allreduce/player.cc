#include "bench/allreduce/player.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "bench/allreduce/exact_data.h"

namespace cadre::bench {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Player::Player(const Options& options, std::map<std::string, std::unique_ptr<Network>> networks,
               std::vector<ContestantName> contestants, StartLine& start_line)
    : options_(options),
      networks_(std::move(networks)),
      names_(std::move(contestants)),
      start_line_(start_line),
      contestants_(names_.size()),
      data_(options.max_bytes),
      input_(options.out_of_place ? static_cast<size_t>(options.max_bytes) : 0) {}

void Player::Serve(const MessageLine& line) {
  for (;;) {
    const absl::StatusOr<Json> order = line.Receive();
    if (!order.ok() || order->at("do") == "quit") return;
    absl::StatusOr<Json> answer = Obey(*order);
    if (!answer.ok()) {
      answer = Json{{"ok", false},
                    {"error", absl::StrCat("rank ", options_.rank, ": ",
                                           std::string(answer.status().message()))}};
    } else {
      (*answer)["ok"] = true;
    }
    if (!line.Send(*answer).ok()) return;
  }
}

absl::StatusOr<Player::Json> Player::Obey(const Json& order) {
  const std::string what = order.at("do");
  if (what == "listen") return Listen();
  if (what == "connect") return Connect(order);
  const size_t contestant = order.at("contestant");
  if (what == "make") return Make(contestant);
  if (what == "prepare") return Prepare(contestant, order.at("bytes"), order.at("in_place"));
  if (what == "check") return Check(contestant);
  if (what == "time") return Time(contestant, order.at("iterations"));
  if (what == "finish") return Finish(contestant);
  return absl::InternalError(absl::StrCat("unknown order ", what));
}

absl::StatusOr<Player::Json> Player::Listen() {
  Json addresses = Json::object();
  for (const auto& [name, network] : networks_) {
    CADRE_ASSIGN_OR_RETURN(addresses[name], network->Listen());
  }
  return Json{{"addresses", std::move(addresses)}};
}

absl::StatusOr<Player::Json> Player::Connect(const Json& order) {
  for (const auto& [name, network] : networks_) {
    const std::vector<std::string> peers = order.at("peers").at(name);
    if (absl::Status status = network->Connect(peers); !status.ok()) return Annotate(status, name);
  }
  return Json::object();
}

absl::StatusOr<Player::Json> Player::Make(size_t contestant) {
  const ContestantName& name = names_[contestant];
  CADRE_ASSIGN_OR_RETURN(contestants_[contestant],
                         networks_.at(name.network)->Make(name.algorithm));
  return Json::object();
}

Task Player::TaskOf(int64_t bytes, bool in_place) {
  const auto size = static_cast<size_t>(bytes);
  Task task{.dtype = options_.dtype, .data = std::span(data_).first(size)};
  if (!in_place) task.input = std::span(input_).first(size);
  return task;
}

absl::StatusOr<Player::Json> Player::Prepare(size_t contestant, int64_t bytes, bool in_place) {
  task_ = TaskOf(bytes, in_place);
  Contestant& prepared = *contestants_[contestant];
  CADRE_RETURN_IF_ERROR(prepared.Prepare(task_));
  // Nobody sends to buffers that are not there yet.
  CADRE_RETURN_IF_ERROR(start_line_.Wait(options_.timeout));
  return Json{{"algorithm", prepared.algorithm()}, {"explanation", prepared.explanation()}};
}

absl::StatusOr<Player::Json> Player::Check(size_t contestant) {
  Contestant& checked = *contestants_[contestant];
  if (task_.in_place()) {
    FillExact(options_.dtype, options_.rank, options_.ranks, task_.data);
  } else {
    FillExact(options_.dtype, options_.rank, options_.ranks,
              std::span(input_).first(task_.data.size()));
    std::fill(task_.data.begin(), task_.data.end(), std::byte{0xff});
  }
  CADRE_RETURN_IF_ERROR(start_line_.Wait(options_.timeout));
  const Clock::time_point start = Clock::now();
  CADRE_RETURN_IF_ERROR(checked.Run());
  const double seconds = SecondsSince(start);
  const int64_t errors =
      checked.adds() ? CountErrors(options_.dtype, options_.ranks, task_.data) : 0;
  // What is added again and again while the clock runs stays what it is.
  std::memset(task_.data.data(), 0, task_.data.size());
  if (!task_.in_place()) std::memset(input_.data(), 0, task_.input.size());
  return Json{{"errors", errors}, {"seconds", seconds}};
}

absl::StatusOr<Player::Json> Player::Time(size_t contestant, int iterations) {
  Contestant& timed = *contestants_[contestant];
  CADRE_RETURN_IF_ERROR(start_line_.Wait(options_.timeout));
  // Where runs are short the first pays for whatever another contestant left behind.
  if (iterations > 1) {
    CADRE_RETURN_IF_ERROR(timed.Run());
    CADRE_RETURN_IF_ERROR(start_line_.Wait(options_.timeout));
  }
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < iterations; ++i) CADRE_RETURN_IF_ERROR(timed.Run());
  return Json{{"seconds", SecondsSince(start)}};
}

absl::StatusOr<Player::Json> Player::Finish(size_t contestant) {
  CADRE_RETURN_IF_ERROR(start_line_.Wait(options_.timeout));
  contestants_[contestant]->Finish();
  return Json::object();
}

}  // namespace cadre::bench
