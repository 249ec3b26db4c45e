// The HTTP server over real connections.
#include "base/http/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <deque>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// A client that sends bytes as they are.
class Client {
 public:
  explicit Client(const HttpServer& server) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    int port = 0;
    EXPECT_TRUE(absl::SimpleAtoi(server.address().substr(server.address().rfind(':') + 1), &port));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    const timeval limit{.tv_sec = 10, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  ~Client() { close(socket_); }

  void Send(absl::string_view text) const {
    EXPECT_EQ(send(socket_, text.data(), text.size(), MSG_NOSIGNAL), std::ssize(text));
  }
  // Reads until the text ends with `end`, or the connection ends.
  std::string ReadUntil(absl::string_view end) {
    std::string text;
    char byte = 0;
    while (!absl::EndsWith(text, end) && recv(socket_, &byte, 1, 0) == 1) text += byte;
    return text;
  }

 private:
  const int socket_;
};

std::string Get(const HttpServer& server, absl::string_view path, absl::string_view headers = "") {
  Client client(server);
  client.Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                           headers, "\r\n"));
  return client.ReadUntil("\n\n\n\n");
}

TEST(HttpServerTest, PassesPathQueryAndHeaders) {
  const auto server = HttpServer::Start({.listen = "127.0.0.1:0"}, [](const HttpRequest& request) {
    return HttpResponse{.body = absl::StrCat(request.path, " ", request.Number("n"), " ",
                                             request.Number("x"), " ", request.accepts_gzip, " ",
                                             request.if_none_match)};
  });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get(**server, "/a%20b?n=7&x=y", "Accept-Encoding: br, gzip\r\nIf-None-Match: t\r\n"),
              HasSubstr("\r\n\r\n/a b 7 0 1 t"));
}

TEST(HttpServerTest, StreamsUntilItIsClosed) {
  EventStream stream;
  const auto server = HttpServer::Start({.listen = "127.0.0.1:0"}, [&](const HttpRequest&) {
    return HttpResponse{.content_type = "text/event-stream", .stream = &stream};
  });
  ASSERT_TRUE(server.ok()) << server.status();
  Client client(**server);
  client.Send("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
  for (int i = 0; i < 100; ++i) {
    stream.Publish("a", absl::StrCat(i));
    EXPECT_THAT(client.ReadUntil(absl::StrCat("data: ", i, "\n\n")),
                HasSubstr(absl::StrCat("id: ", i + 1, "\n")));
  }
  std::thread close([&] { stream.Close(); });
  client.ReadUntil("\n\n\n\n");
  close.join();
  EXPECT_EQ(stream.viewers(), 0U);
}

TEST(HttpServerTest, RequestsThatAreTooLargeEnd) {
  const auto server = HttpServer::Start({.listen = "127.0.0.1:0"},
                                        [](const HttpRequest&) { return HttpResponse{}; });
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_THAT(Get(**server, absl::StrCat("/", std::string(60'000, 'a'))),
              StartsWith("HTTP/1.1 414"));
}

TEST(HttpServerTest, AddressesThatCannotBeUsed) {
  const auto handler = [](const HttpRequest&) { return HttpResponse{}; };
  for (const char* listen : {"", "7000", "127.0.0.1:", "127.0.0.1:70000", ":1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(HttpServer::Start({.listen = listen}, handler).status()))
        << listen;
  }
  const auto server = HttpServer::Start({.listen = "127.0.0.1:0"}, handler);
  ASSERT_TRUE(server.ok());
  const auto again = HttpServer::Start({.listen = (*server)->address()}, handler);
  EXPECT_TRUE(absl::IsAlreadyExists(again.status()));
}

TEST(HttpServerTest, OneAddressHasThreeQuartersOfTheConnections) {
  const auto server = HttpServer::Start({.listen = "127.0.0.1:0", .max_connections = 4},
                                        [](const HttpRequest&) { return HttpResponse{}; });
  ASSERT_TRUE(server.ok()) << server.status();
  constexpr absl::string_view kRequest = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  std::deque<Client> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back(**server).Send(kRequest);
    EXPECT_EQ(clients.back().ReadUntil("\r\n"), i < 3 ? "HTTP/1.1 200 OK\r\n" : "");
  }
}

}  // namespace
}  // namespace cadre
