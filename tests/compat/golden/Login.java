// A client that says who it is, with SCRAM, and asks for the cluster; then with a wrong password, if
// one is given. Usage: Login BOOTSTRAP USER PASSWORD [WRONG].

import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.errors.SaslAuthenticationException;

public class Login {
    public static void main(String[] arguments) throws Exception {
        Steps.same(1, nodes(arguments[0], "login", "SCRAM-SHA-512", arguments[1], arguments[2]), "nodes");
        try {
            if (arguments.length > 3) {
                nodes(arguments[0], "refused", "SCRAM-SHA-512", arguments[1], arguments[3]);
            }
        } catch (ExecutionException refused) {
            Steps.holds(refused.getCause() instanceof SaslAuthenticationException, "" + refused);
        }
        Runtime.getRuntime().halt(0);
    }

    private static int nodes(String bootstrap, String client, String mechanism, String user, String password)
            throws Exception {
        String module = "org.apache.kafka.common.security.scram.ScramLoginModule";
        Map<String, Object> settings = new HashMap<>(Map.of("bootstrap.servers", bootstrap,
            "client.id", client, "security.protocol", "SASL_PLAINTEXT", "sasl.mechanism", mechanism,
            "sasl.jaas.config", module + " required username=\"" + user + "\" password=\"" + password + "\";"));
        try (Admin admin = Admin.create(settings)) {
            return admin.describeCluster().nodes().get(20, TimeUnit.SECONDS).size();
        }
    }
}
