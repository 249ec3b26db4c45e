// A slow link to a server on loopback, for tests: forwards one connection after another.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace cadre {

class SlowRelay {
 public:
  struct Options {
    // Time until the first byte of a connection: the kernel accepts it immediately, as it does on a
    // busy host.
    absl::Duration delay = absl::ZeroDuration();
    // Rate of the bytes to the server; 0: no limit.
    int64_t bytes_per_second = 0;
    // Bytes to the server after which all connections stay open, but nothing is forwarded.
    int64_t max_bytes = std::numeric_limits<int64_t>::max();
  };

  SlowRelay(int server_port, const Options& options)
      : server_port_(server_port), options_(options) {
    // Bytes should wait at the sender, not here.
    const int small = 4096;
    setsockopt(listener_, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    sockaddr_in address = Loopback(0);
    socklen_t length = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~SlowRelay() {
    ending_ = true;
    // Ends accept if it is still waiting.
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

 private:
  static constexpr int kPollMs = 20;

  static sockaddr_in Loopback(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }

  void Run() {
    int client = -1;
    while ((client = accept(listener_, nullptr, nullptr)) >= 0) {
      absl::SleepFor(options_.delay);
      const int server = socket(AF_INET, SOCK_STREAM, 0);
      const sockaddr_in address = Loopback(server_port_);
      EXPECT_EQ(connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
      ForwardUntilClosed(client, server);
      close(client);
      close(server);
    }
  }

  void ForwardUntilClosed(int client, int server) {
    pollfd ends[] = {{.fd = client, .events = POLLIN}, {.fd = server, .events = POLLIN}};
    // A thread that wakes up late catches up, so that the rate is that of the options on a busy
    // host.
    absl::Time due = absl::Now();
    while (!ending_) {
      ends[0].events = sent_ < options_.max_bytes ? POLLIN : 0;
      ends[0].revents = ends[1].revents = 0;
      if (poll(ends, 2, kPollMs) == 0) continue;
      if ((ends[0].revents & POLLIN) != 0) {
        const ssize_t bytes = Forward(client, server);
        if (bytes <= 0) return;
        sent_ += bytes;
        if (options_.bytes_per_second > 0) {
          due += absl::Seconds(static_cast<double>(bytes) /
                               static_cast<double>(options_.bytes_per_second));
          absl::SleepFor(due - absl::Now());
        }
      } else if (ends[0].revents != 0) {
        return;
      }
      if (ends[1].revents != 0 && Forward(server, client) <= 0) return;
    }
  }

  // Returns the number of bytes; at most 0 at the end.
  static ssize_t Forward(int from, int to) {
    char buffer[16 << 10];
    const ssize_t bytes = recv(from, buffer, sizeof(buffer), 0);
    return bytes > 0 && send(to, buffer, bytes, MSG_NOSIGNAL) == bytes ? bytes : 0;
  }

  const int server_port_;
  const Options options_;
  const int listener_ = socket(AF_INET, SOCK_STREAM, 0);
  int port_ = 0;
  std::atomic<bool> ending_ = false;
  // Bytes forwarded to the server.
  int64_t sent_ = 0;
  std::thread thread_;
};

}  // namespace cadre
