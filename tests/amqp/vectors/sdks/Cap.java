import com.azure.messaging.eventhubs.*; import com.azure.messaging.eventhubs.models.*; import java.util.*;
public class Cap { public static void main(String[] a) throws Exception {
 String[] words = {"type","source","unit","line","site","count","celsius","ok","trace","at"};
 EventHubProducerClient p = new EventHubClientBuilder().connectionString(a[0]).buildProducerClient();
 byte[] body = new byte[200]; Arrays.fill(body, (byte)'x');
 for (int shape = 0; shape < 42; shape++) {
  EventData e = new EventData(body);
  if (shape%3==0) e.setContentType("application/json");
  if (shape%4==0) e.setMessageId("m-"+shape);
  if (shape%6==1) e.setCorrelationId("c-"+shape);
  for (int j=0;j<1+shape%8;j++) {
   String name = words[(shape+3*j)%10] + (shape>20 ? ""+shape : "");
   Object v;
   switch ((shape+2*j)%9) { case 0: v="text "+shape*j; break; case 1: v=shape*1000; break; case 2: v=21.5+shape/8.0; break;
    case 3: v=j%2==0; break; case 4: v=1L<<40; break; case 5: v=new Date(1763600000123L); break; case 6: v=UUID.fromString("00112233-4455-6677-8899-aabbccddeeff"); break;
    case 7: v=0.5f+j; break; default: v="plain"; }
   e.getProperties().put(name, v);
  }
  SendOptions o = shape%5==0 ? new SendOptions().setPartitionKey("key-"+shape) : new SendOptions().setPartitionId("0");
  p.send(List.of(e), o);
 }
 p.close(); System.exit(0);
} }
