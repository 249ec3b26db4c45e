#include "bench/allreduce/crew.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <map>
#include <thread>
#include <utility>

#include "base/status.h"
#include "bench/allreduce/cadre_network.h"
#include "bench/allreduce/gloo_network.h"
#include "bench/allreduce/socket_network.h"
#include "worker/transport/thread_transport.h"

namespace cadre::bench {
namespace {

using Json = nlohmann::json;
using Networks = std::map<std::string, std::unique_ptr<Network>>;

absl::StatusOr<std::unique_ptr<Network>> MakeNetwork(const std::string& name, int rank,
                                                     const CrewOptions& options) {
  if (name == "gloo") {
    return MakeGlooNetwork(rank, options.ranks, options.gloo_folder, options.timeout);
  }
  if (name == "socket") return MakeSocketNetwork(rank);
  return MakeGroupNetwork({.rank = rank,
                           .ranks = options.ranks,
                           .tcp = name == "tcp",
                           .connections = options.tcp_connections,
                           .timeout = options.timeout});
}

Player::Options PlayerOptions(int rank, const CrewOptions& options) {
  return {.rank = rank,
          .ranks = options.ranks,
          .dtype = options.dtype,
          .max_bytes = options.max_bytes,
          .out_of_place = options.out_of_place,
          .timeout = options.timeout};
}

// The life of a child with one rank.
void PlayInProcess(int rank, const CrewOptions& options,
                   const std::vector<ContestantName>& contestants, StartLine& start_line,
                   const MessageLine& line) {
  Networks networks;
  for (const ContestantName& name : contestants) {
    if (networks.count(name.network) > 0) continue;
    absl::StatusOr<std::unique_ptr<Network>> network = MakeNetwork(name.network, rank, options);
    if (!network.ok()) {
      std::fprintf(stderr, "%s\n", network.status().ToString().c_str());
      return;
    }
    networks[name.network] = *std::move(network);
  }
  Player(PlayerOptions(rank, options), std::move(networks), contestants, start_line).Serve(line);
}

// The life of a child whose threads are the ranks.
void PlayInThreads(const CrewOptions& options, const std::vector<ContestantName>& contestants,
                   StartLine& start_line, const std::vector<MessageLine>& lines) {
  std::vector<std::unique_ptr<Transport>> transports =
      MakeThreadTransports(options.ranks, options.timeout);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < options.ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      Networks networks;
      networks["threads"] = MakeReadyNetwork(std::move(transports[rank]));
      Player(PlayerOptions(rank, options), std::move(networks), contestants, start_line)
          .Serve(lines[rank]);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Forks; the child lives `life` and ends. Errors: ResourceExhausted.
template <typename Life>
absl::StatusOr<pid_t> Fork(const Life& life) {
  const pid_t referee = getpid();
  const pid_t child = fork();
  if (child < 0) return absl::ResourceExhaustedError("no process could be made");
  if (child > 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() == referee) life();
  // What the referee's process owns is not the child's to end.
  _exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Crew>> Crew::Start(const CrewOptions& options,
                                                  std::vector<ContestantName> contestants) {
  auto crew = std::unique_ptr<Crew>(new Crew());
  CADRE_ASSIGN_OR_RETURN(crew->start_line_, StartLine::Make(options.ranks));
  std::vector<MessageLine> theirs;
  for (int rank = 0; rank < options.ranks; ++rank) {
    CADRE_ASSIGN_OR_RETURN(auto ends, MessageLine::MakePair());
    crew->lines_.push_back(std::move(ends.first));
    theirs.push_back(std::move(ends.second));
  }
  const bool threads = contestants.front().network == "threads";
  for (int rank = 0; rank < (threads ? 1 : options.ranks); ++rank) {
    CADRE_ASSIGN_OR_RETURN(const pid_t child, Fork([&] {
                             // Ends that this child keeps open would hide another's death.
                             crew->lines_.clear();
                             if (threads) {
                               PlayInThreads(options, contestants, *crew->start_line_, theirs);
                               return;
                             }
                             MessageLine mine = std::move(theirs[rank]);
                             theirs.clear();
                             PlayInProcess(rank, options, contestants, *crew->start_line_, mine);
                           }));
    crew->children_.push_back(child);
  }
  theirs.clear();
  CADRE_RETURN_IF_ERROR(crew->Connect());
  for (size_t contestant = 0; contestant < contestants.size(); ++contestant) {
    CADRE_RETURN_IF_ERROR(crew->Order({{"do", "make"}, {"contestant", contestant}}).status());
  }
  return crew;
}

Crew::~Crew() {
  for (const pid_t child : children_) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
  }
}

absl::Status Crew::Connect() {
  CADRE_ASSIGN_OR_RETURN(const std::vector<Json> answers, Order({{"do", "listen"}}));
  Json peers = Json::object();
  for (const Json& answer : answers) {
    for (const auto& [network, address] : answer.at("addresses").items()) {
      peers[network].push_back(address);
    }
  }
  return Order({{"do", "connect"}, {"peers", std::move(peers)}}).status();
}

absl::StatusOr<std::vector<Json>> Crew::Order(const Json& order) {
  for (const MessageLine& line : lines_) CADRE_RETURN_IF_ERROR(line.Send(order));
  std::vector<Json> answers(lines_.size());
  std::vector<pollfd> polled;
  for (const MessageLine& line : lines_) polled.push_back({line.fd(), POLLIN, 0});
  // As they come: a rank that failed is heard although others still wait for it.
  for (size_t missing = answers.size(); missing > 0;) {
    if (poll(polled.data(), polled.size(), -1) < 0) continue;  // interrupted
    for (size_t rank = 0; rank < lines_.size(); ++rank) {
      if (polled[rank].revents == 0) continue;
      CADRE_ASSIGN_OR_RETURN(answers[rank], lines_[rank].Receive());
      if (!answers[rank].at("ok").get<bool>()) {
        return absl::UnavailableError(answers[rank].at("error").get<std::string>());
      }
      polled[rank] = {-1, 0, 0};  // poll passes it over
      --missing;
    }
  }
  return answers;
}

void Crew::Quit() {
  for (const MessageLine& line : lines_) {
    // One that is gone needs no telling.
    (void)line.Send({{"do", "quit"}}).ok();
  }
  for (const pid_t child : children_) waitpid(child, nullptr, 0);
  children_.clear();
}

}  // namespace cadre::bench
