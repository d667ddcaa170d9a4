import java.io.IOException;
import java.net.URI;
import java.net.URL;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.WebSocket;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.TimeUnit;

public class Reach {
    public static void main(String[] where) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (String base : where) {
            HttpRequest request = HttpRequest.newBuilder(URI.create(base + "/hello")).build();
            System.out.println(client.send(request, HttpResponse.BodyHandlers.ofString()).body());
            try (var stream = new URL(base + "/hello").openStream()) {
                System.out.println(new String(stream.readAllBytes()));
            }
        }
        CompletableFuture<String> echo = new CompletableFuture<>();
        URI socket = URI.create(where[0].replace("http", "ws") + "/ws");
        WebSocket web = client.newWebSocketBuilder().buildAsync(socket, new WebSocket.Listener() {
            public CompletionStage<?> onText(WebSocket web, CharSequence text, boolean last) {
                echo.complete("echo " + text);
                return null;
            }
        }).join();
        web.sendText("java", true);
        System.out.println(echo.get(10, TimeUnit.SECONDS));
        try {
            new URL("http://denied.test/").openStream();
        } catch (IOException expected) {
            System.out.println("denied");
        }
        System.exit(0);
    }
}
